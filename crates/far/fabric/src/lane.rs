//! Another way to the regions of a server beside its connections, for each connection one: what its client asks about
//! it goes over that connection.

use std::sync::Arc;

use crate::error::Refusal;

/// The serving end of one.
pub trait Lane: Send + Sync {
    /// Answers a call about it.
    ///
    /// # Errors
    ///
    /// It refuses.
    fn answer(&self, code: u8, request: &[u8]) -> Result<Vec<u8>, Refusal>;

    /// Whether calls with this code may take long. They have a thread of the connection to themselves, one after the
    /// other, so that reads do not wait for them.
    fn is_slow(&self, _code: u8) -> bool {
        false
    }
}

/// Makes one for each connection.
pub type Lanes = Arc<dyn Fn() -> Box<dyn Lane> + Send + Sync>;

/// Calls with codes from this one on are about lanes.
pub const FIRST_CODE: u8 = 2;
