//! How handshakes fail.

use std::io;

/// How a handshake ends that does not succeed.
#[derive(Debug)]
pub enum Failed {
    Io(io::Error),
    OtherVersion(u32),
    NoSuchKey,
    TooMany,
    /// The peer's proof does not hold.
    PeerWithoutKey,
    /// TLS failed here, as a rule because of the peer's certificate.
    Tls(rustls::Error),
    /// The server does not accept this end's certificate.
    CertificateRefused(rustls::AlertDescription),
    /// The server has no certificate.
    PeerWithoutTls,
    /// The client has no certificate.
    ClientWithoutTls,
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Io(error)
    }
}

impl From<snow::Error> for Failed {
    fn from(_: snow::Error) -> Failed {
        Failed::Io(io::Error::other("the cipher failed"))
    }
}
