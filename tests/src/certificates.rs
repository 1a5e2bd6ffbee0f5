//! Certificates of nodes, made as the guide of far memory says.

use std::path::PathBuf;
use std::process::Command;

use crate::{Outcome, farfork, nodes, testbed};

/// Why there can be none here.
pub fn missing() -> Option<String> {
    let has_openssl = || Command::new("openssl").arg("version").output().is_ok();
    let none = || Some("certificates are made with openssl".to_owned());
    nodes::missing().or_else(|| if has_openssl() { None } else { none() })
}

/// Files of authorities and nodes.
pub struct Files(PathBuf);

impl Files {
    /// A directory with the authority `ca`.
    ///
    /// # Errors
    /// The directory or the authority cannot be made.
    pub fn of(test: &str) -> Outcome<Files> {
        let directory = testbed::work_dir(test)?;
        let files = Files(directory);
        files.authority("ca")?;
        Ok(files)
    }

    fn openssl(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new("openssl");
        command.current_dir(&self.0).args(["req", "-x509", "-newkey", "ed25519", "-noenc"]);
        command.args(arguments);
        farfork::must_run(command).map(drop)
    }

    /// An authority.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn authority(&self, name: &str) -> Outcome {
        let (key, pem) = (format!("{name}.key"), format!("{name}.pem"));
        let is_authority = ["-addext", "basicConstraints=critical,CA:TRUE"];
        let signs = ["-addext", "keyUsage=critical,keyCertSign", "-subj", "/CN=farfork"];
        let out = ["-days", "30", "-keyout", &key, "-out", &pem];
        self.openssl(&[&is_authority[..], &signs, &out].concat())
    }

    /// A node's certificate, for this address and these uses.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn node(&self, name: &str, authority: &str, address: &str, uses: &str) -> Outcome {
        let [key, pem] = [format!("{name}.key"), format!("{name}.pem")];
        let [ca, ca_key] = [format!("{authority}.pem"), format!("{authority}.key")];
        let (names, uses) =
            (format!("subjectAltName=IP:{address}"), format!("extendedKeyUsage={uses}"));
        let signed = ["-CA", &ca, "-CAkey", &ca_key, "-subj", "/CN=node", "-days", "30"];
        let says = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", &names];
        let out = ["-addext", &uses, "-keyout", &key, "-out", &pem];
        self.openssl(&[&signed[..], &says, &out].concat())
    }

    /// One of the files.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The options of a node with this certificate, which trusts that authority.
    pub fn options(&self, name: &str, authority: &str) -> Vec<String> {
        let file = |name: String| self.at(&name).display().to_string();
        let files = [
            ("--tls-cert", format!("{name}.pem")),
            ("--tls-key", format!("{name}.key")),
            ("--tls-ca", format!("{authority}.pem")),
        ];
        files.into_iter().flat_map(|(option, name)| [option.to_owned(), file(name)]).collect()
    }
}

/// Uses of a node that serves, and asks.
pub const BOTH: &str = "serverAuth,clientAuth";

/// Options before others.
pub fn with<'o>(options: &'o [String], more: &[&'o str]) -> Vec<&'o str> {
    options.iter().map(String::as_str).chain(more.iter().copied()).collect()
}
