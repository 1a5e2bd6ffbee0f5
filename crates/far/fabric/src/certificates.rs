//! Certificates: what proves two nodes to each other beside a shared key.
//!
//! Both ends have a certificate of one authority, and each verifies the other's: signatures, dates, that it is for
//! servers or for clients (`extendedKeyUsage`, where it has that), and that a server's is for the address that
//! was connected to (`subjectAltName`). TLS 1.3 alone, without resumption: each connection verifies anew.

use std::fmt;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};

/// A node's certificate with its private key, and the authority that signs the certificates of its peers.
#[derive(Clone)]
pub struct Certificates {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

/// Finds a server's certificates for each new connection: they can be renewed while it runs.
pub type CertificateSource = Arc<dyn Fn() -> Certificates + Send + Sync>;

/// Why files are not certificates that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCertificates {
    /// The certificate.
    #[error("the certificate cannot be used: {0}")]
    Certificate(String),
    /// The private key.
    #[error("the private key cannot be used: {0}")]
    Key(String),
    /// The authority.
    #[error("the certificate of the authority (CA) cannot be used: {0}")]
    Authority(String),
}

impl Certificates {
    /// From texts in the format PEM: a certificate and those between it and its authority, its private key, and
    /// the certificates of one or more authorities.
    ///
    /// # Errors
    ///
    /// A text is not PEM or has nothing of its kind, or the key does not belong to the certificate.
    pub fn from_pem(
        chain: &[u8],
        key: &[u8],
        authorities: &[u8],
    ) -> Result<Certificates, BadCertificates> {
        let chain = certificates(chain).map_err(BadCertificates::Certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| BadCertificates::Key(pem_words(&error, "private key")))?;
        let bad_authority = BadCertificates::Authority;
        let mut roots = RootCertStore::empty();
        for authority in certificates(authorities).map_err(bad_authority)? {
            roots.add(authority).map_err(|error| bad_authority(words(&error)))?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
        let client = client_config(&provider, &roots, &chain, &key)?;
        let server = server_config(&provider, &roots, chain, key)?;
        Ok(Certificates { client: Arc::new(client), server: Arc::new(server) })
    }
}

fn client_config(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<ClientConfig, BadCertificates> {
    let begun = ClientConfig::builder_with_provider(Arc::clone(provider));
    let mut config = begun
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| BadCertificates::Certificate(words(&error)))?
        .with_root_certificates(Arc::clone(roots))
        .with_client_auth_cert(chain.to_vec(), key.clone_key())
        .map_err(|error| not_a_pair(&error))?;
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, BadCertificates> {
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider))
            .build()
            .map_err(|error| BadCertificates::Authority(error.to_string()))?;
    let begun = ServerConfig::builder_with_provider(Arc::clone(provider));
    let mut config = begun
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| BadCertificates::Certificate(words(&error)))?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .map_err(|error| not_a_pair(&error))?;
    // After the handshake the bytes of a connection are not those of TLS any more.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| pem_words(&error, "certificate"))?;
    if all.is_empty() { Err(pem_words(&pem::Error::NoItemsFound, "certificate")) } else { Ok(all) }
}

fn pem_words(error: &pem::Error, what: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("the file has no {what} in the format PEM"),
        other => format!("the file is not in the format PEM: {other}"),
    }
}

fn not_a_pair(error: &rustls::Error) -> BadCertificates {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            BadCertificates::Key("it does not belong to the certificate".to_owned())
        }
        other => BadCertificates::Certificate(words(other)),
    }
}

/// An error of the library. What it says of certificates is of those of the peer.
pub(crate) fn words(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(why) => certificate_words(why),
        rustls::Error::NoCertificatesPresented => "it sent none".to_owned(),
        other => other.to_string(),
    }
}

fn certificate_words(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired (by the clock of this node)".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet (by the clock of this node)".to_owned()
        }
        CertificateError::UnknownIssuer => {
            "it is signed by an authority (CA) that is not trusted here".to_owned()
        }
        CertificateError::BadSignature => {
            "its signature is not that of the authority (CA) that it names".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is not for this address (subjectAltName)".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is not for this side of a connection (extendedKeyUsage)".to_owned()
        }
        other => other.to_string(),
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}
