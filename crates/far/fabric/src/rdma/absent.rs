//! What stands in for RDMA in a build without it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use super::error::RdmaError;
use crate::error::FabricError;
use crate::fabric::{Batch, Fabric, Segment};
use crate::lane::Lanes;
use crate::region::{RegionKey, Regions};
use crate::tcp::{ClientSettings, Connection};

/// No device.
#[derive(Debug)]
pub struct Device(Infallible);

/// No connection.
pub struct Rdma(Infallible);

impl Device {
    /// The device with this name.
    ///
    /// # Errors
    ///
    /// [`RdmaError::NotBuilt`].
    pub fn named(_name: &str) -> Result<Device, RdmaError> {
        Err(RdmaError::NotBuilt)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self.0 {}
    }
}

impl Rdma {
    /// Reads by RDMA beside a connection.
    ///
    /// # Errors
    ///
    /// [`RdmaError::NotBuilt`], and the connection.
    pub fn beside(
        control: Connection,
        _settings: &ClientSettings,
        _deadline: Instant,
    ) -> Result<Rdma, Box<(Connection, RdmaError)>> {
        Err(Box::new((control, RdmaError::NotBuilt)))
    }
}

/// What devices there are.
///
/// # Errors
///
/// [`RdmaError::NotBuilt`].
pub fn examine() -> Result<Vec<String>, RdmaError> {
    Err(RdmaError::NotBuilt)
}

/// Lanes of a server.
pub fn lanes(device: Device, _regions: &Arc<Regions>, _most_bytes: u64) -> Lanes {
    match device.0 {}
}

impl Fabric for Rdma {
    fn name(&self) -> &'static str {
        match self.0 {}
    }

    fn is_one_sided(&self) -> bool {
        match self.0 {}
    }

    fn is_one_sided_for(&self, _key: &RegionKey) -> bool {
        match self.0 {}
    }

    fn peer(&self) -> &str {
        match self.0 {}
    }

    fn broken(&self) -> Option<FabricError> {
        match self.0 {}
    }

    fn submit(&self, _segments: &[Segment], _deadline: Instant) -> Result<Batch, FabricError> {
        match self.0 {}
    }

    fn call(&self, _request: &[u8], _deadline: Instant) -> Result<Vec<u8>, FabricError> {
        match self.0 {}
    }
}
