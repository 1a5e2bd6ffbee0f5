//! What can go wrong with a read from another node.

use std::io;

use farfork_sys::words;

use crate::MAX_SEGMENT_BYTES;

/// An error of a submission or of one segment. It is cloned for all segments that it affects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// No connection came about.
    #[error("cannot connect to {peer}: {why}")]
    Connect {
        /// The address.
        peer: String,
        /// The reason.
        why: String,
    },
    /// The peer does not accept the shared key.
    #[error(
        "{peer} does not accept the shared key: give the key file that the serving command printed"
    )]
    WrongSharedKey {
        /// The address.
        peer: String,
    },
    /// The peer cannot prove that it has the shared key.
    #[error("{peer} does not have the shared key: it is not the server that the key belongs to")]
    PeerWithoutKey {
        /// The address.
        peer: String,
    },
    /// The certificate of the peer is not accepted here.
    #[error("the certificate of {peer} is not accepted: {why}")]
    BadCertificate {
        /// The address.
        peer: String,
        /// The reason.
        why: String,
    },
    /// The peer does not accept the certificate of this end.
    #[error("{peer} does not accept the certificate of this node: {why}")]
    CertificateRefused {
        /// The address.
        peer: String,
        /// The reason.
        why: String,
    },
    /// The peer demands a certificate.
    #[error(
        "{peer} demands a certificate beside the shared key: give --tls-cert, --tls-key and --tls-ca"
    )]
    NeedsCertificate {
        /// The address.
        peer: String,
    },
    /// The peer has no certificate, and this end demands one.
    #[error(
        "{peer} has no certificate, which --tls-ca demands here: start the serving command there with \
         --tls-cert, --tls-key and --tls-ca"
    )]
    PeerWithoutCertificate {
        /// The address.
        peer: String,
    },
    /// The peer has another version of the protocol.
    #[error(
        "cannot talk to {peer}: protocol version mismatch (it has {found}, this farfork {known}); \
         use one version of farfork on both sides"
    )]
    OtherVersion {
        /// The address.
        peer: String,
        /// Its version.
        found: u32,
        /// Version of this program.
        known: u32,
    },
    /// The connection has ended.
    #[error("the connection to {peer} broke: {why}")]
    Broken {
        /// The address.
        peer: String,
        /// The reason.
        why: String,
    },
    /// The answer did not arrive in time.
    #[error("{peer} did not answer within the deadline")]
    DeadlinePassed {
        /// The address.
        peer: String,
    },
    /// A segment is too long.
    #[error("a segment of {bytes} bytes is too long: at most {MAX_SEGMENT_BYTES} bytes")]
    TooLong {
        /// Bytes asked for.
        bytes: u32,
    },
    /// The peer refused a segment or a call.
    #[error("{peer} refused the request: {refusal}")]
    Refused {
        /// The address.
        peer: String,
        /// The reason.
        refusal: Refusal,
    },
    /// A request of a call is too long.
    #[error("a call of {bytes} bytes is too long: at most {limit} bytes")]
    CallTooLong {
        /// Bytes of the request.
        bytes: usize,
        /// The most bytes.
        limit: usize,
    },
}

/// Why a serving node did not read a segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No region has the id of the key.
    #[error("it has no such region: the region was removed, or the server was started anew")]
    UnknownRegion,
    /// The key was revoked.
    #[error("the key of the region was revoked")]
    StaleKey,
    /// The secret of the key is wrong.
    #[error("the key does not fit the region")]
    WrongKey,
    /// The segment is not in the region, or too long.
    #[error("the segment lies outside of the region, which has {bytes} bytes")]
    OutOfBounds {
        /// Bytes of the region.
        bytes: u64,
    },
    /// Reading the region failed, or the service of calls refused.
    #[error("{why}")]
    Failed {
        /// The reason.
        why: String,
    },
}

impl Refusal {
    /// A failed read of a region.
    pub fn read_failed(error: &io::Error) -> Refusal {
        Refusal::Failed { why: format!("it cannot read the region: {}", words::of(error)) }
    }
}
