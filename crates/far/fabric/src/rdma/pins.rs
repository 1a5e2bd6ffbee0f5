//! How much of a server's memory is pinned for its devices.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use farfork_sys::sync::locked;

/// The regions that are pinned. Windows of one region, of several connections, pin the same pages.
pub struct Pins {
    most_bytes: u64,
    regions: Mutex<HashMap<u128, Pinned>>,
}

struct Pinned {
    bytes: u64,
    windows: u32,
}

/// One window of a region. Its share ends when it is dropped.
pub struct Pin {
    pins: Arc<Pins>,
    region: u128,
}

impl Pins {
    pub fn new(most_bytes: u64) -> Arc<Pins> {
        Arc::new(Pins { most_bytes, regions: Mutex::default() })
    }

    /// Counts a window of a region of so many bytes, or says why there can be none.
    pub fn take(self: &Arc<Self>, region: u128, bytes: u64) -> Result<Pin, String> {
        let mut regions = self.regions();
        let others: u64 =
            regions.iter().filter(|one| *one.0 != region).map(|one| one.1.bytes).sum();
        let most = self.most_bytes;
        if others.checked_add(bytes).is_none_or(|all| all > most) {
            return Err(format!(
                "it cannot pin {bytes} bytes more for reads by RDMA: {others} of {most} bytes are pinned; the image is read \
                 by TCP (raise --rdma-limit of the serving command)"
            ));
        }
        let pinned = regions.entry(region).or_insert(Pinned { bytes, windows: 0 });
        pinned.windows += 1;
        Ok(Pin { pins: Arc::clone(self), region })
    }

    fn regions(&self) -> MutexGuard<'_, HashMap<u128, Pinned>> {
        locked(&self.regions)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut regions = self.pins.regions();
        let Some(pinned) = regions.get_mut(&self.region) else { return };
        pinned.windows -= 1;
        if pinned.windows == 0 {
            regions.remove(&self.region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_count_once_and_until_their_last_window_ends() {
        let pins = Pins::new(100);
        let one = pins.take(1, 60).unwrap();
        let same = pins.take(1, 60).unwrap();
        let why = pins.take(2, 41).map(drop).unwrap_err();
        assert!(why.contains("41 bytes more") && why.contains("60 of 100 bytes"), "{why}");
        let other = pins.take(2, 40).unwrap();
        drop(one);
        assert!(pins.take(3, 1).is_err(), "a window of the first region is left");
        drop(same);
        pins.take(3, 60).unwrap();
        drop(other);
        assert!(pins.take(4, u64::MAX).is_err());
        assert!(pins.take(4, 101).is_err());
        pins.take(4, 100).unwrap();
    }
}
