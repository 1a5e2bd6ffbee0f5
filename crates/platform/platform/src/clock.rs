//! The time of day, and the time that the scheduler counts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Counts microseconds since it was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    begun: Instant,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { begun: Instant::now() }
    }
}

impl Clock {
    /// The time.
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// When it is this time.
    pub fn at(&self, us: u64) -> Instant {
        self.begun + Duration::from_micros(us)
    }
}
