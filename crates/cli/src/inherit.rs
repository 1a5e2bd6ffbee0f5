//! `--inherit-fd`: descriptors that the caller supplies to a clone.

use farfork_sys::words;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::str::FromStr;

/// `N=PATH`: descriptor N is PATH, opened; a socket is connected to; `listen:PATH` is a new socket
/// listening there. `%i` in PATH is the number of the clone, counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inherit {
    /// Number in the clone.
    pub(crate) fd: u32,
    path: String,
    listens: bool,
}

impl FromStr for Inherit {
    type Err = String;

    fn from_str(text: &str) -> Result<Inherit, String> {
        let wrong = || format!("'{text}' is not N=PATH, as 3=/run/app.sock is");
        let (number, path) = text.split_once('=').ok_or_else(wrong)?;
        let fd = number.parse().map_err(|_| wrong())?;
        let listens = path.starts_with("listen:");
        let path = path.strip_prefix("listen:").unwrap_or(path);
        if path.is_empty() {
            return Err(wrong());
        }
        Ok(Inherit { fd, path: path.to_owned(), listens })
    }
}

impl Inherit {
    /// Opens it for clone number `index`.
    pub(crate) fn open(&self, index: usize) -> Result<OwnedFd, String> {
        let path = self.path.replace("%i", &index.to_string());
        let result = if self.listens { listen(&path) } else { open(&path) };
        result.map_err(|error| {
            format!("cannot open {path} for descriptor {}: {}", self.fd, words::of(&error))
        })
    }
}

fn listen(path: &str) -> io::Result<OwnedFd> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && !answers(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path).map(OwnedFd::from)
        }
        other => other.map(OwnedFd::from),
    }
}

/// Whether somebody still listens; a file left behind by the dead may be replaced.
fn answers(path: &str) -> bool {
    UnixStream::connect(path).is_ok()
}

fn open(path: &str) -> io::Result<OwnedFd> {
    if fs::metadata(path)?.file_type().is_socket() {
        return UnixStream::connect(path).map(OwnedFd::from);
    }
    let both = OpenOptions::new().read(true).write(true).open(path);
    both.or_else(|_| File::open(path)).map(OwnedFd::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_path_are_needed() {
        let listening: Inherit = "3=listen:/run/a-%i.sock".parse().unwrap();
        assert_eq!((listening.fd, listening.path.as_str()), (3, "/run/a-%i.sock"));
        assert!(listening.listens);
        assert!(!"7=/dev/null".parse::<Inherit>().unwrap().listens);
        for text in ["", "3", "=x", "x=/dev/null", "3=", "-1=/x", "3=listen:"] {
            assert!(text.parse::<Inherit>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_clone_gets_a_socket_of_its_own() {
        let directory = std::env::temp_dir().join(format!("farfork-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let text = format!("3=listen:{}/%i.sock", directory.display());
        let inherit: Inherit = text.parse().unwrap();
        let _first = inherit.open(0).unwrap();
        let _second = inherit.open(1).unwrap();
        assert!(inherit.open(0).is_err(), "somebody listens there");
        let _client = UnixStream::connect(directory.join("1.sock")).unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }
}
