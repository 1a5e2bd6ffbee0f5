//! The files by which a node proves itself to other nodes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Files in the format PEM. They are read for each new connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TlsFiles {
    /// The node's certificate, and those between it and its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificates of the authorities that sign those of its peers.
    pub ca: PathBuf,
}
