//! The best transport to a server: shared memory on one host, then RDMA, then TCP.

use std::sync::Arc;
use std::time::Instant;

use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::key::SharedKey;
use crate::rdma::Rdma;
use crate::tcp::{ClientSettings, Connection};

/// Connects to `address` by the best transport that server and machine have. With certificates, bytes must be encrypted:
/// RDMA is not used then.
///
/// # Errors
///
/// As with [`Connection::connect`].
pub fn connect_nearest(
    address: &str,
    key: &SharedKey,
    settings: ClientSettings,
) -> Result<Arc<dyn Fabric>, FabricError> {
    let deadline = Instant::now() + settings.timeout;
    let connection = Connection::connect_nearest(address, key, settings.clone())?;
    if connection.local_ip().is_none() || settings.certificates.is_some() {
        return Ok(Arc::new(connection));
    }
    match Rdma::beside(connection, &settings, deadline) {
        Ok(rdma) => Ok(Arc::new(rdma)),
        Err(without) => Ok(Arc::new(without.0)),
    }
}
