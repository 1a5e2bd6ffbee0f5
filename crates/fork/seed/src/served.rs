//! A seed's region as the fabric serves it: gone at the seed's end, with a reason that names the seed.

use std::io;
use std::sync::RwLock;

use farfork_fabric::Region;
use farfork_sys::sync::unpoisoned;
use farfork_types::Cid;

use crate::region::SeedRegion;

/// Bytes that clones read.
pub struct ServedSeed {
    id: Cid,
    bytes: u64,
    /// The region, or why it is gone.
    state: RwLock<Result<SeedRegion, String>>,
}

impl ServedSeed {
    /// Serves the region of seed `id`.
    pub fn new(id: Cid, region: SeedRegion) -> ServedSeed {
        ServedSeed { id, bytes: region.bytes(), state: RwLock::new(Ok(region)) }
    }

    /// Lets go of all bytes. No read is in progress when this returns.
    pub fn end(&self, why: &str) {
        let mut state = unpoisoned(self.state.write());
        *state = Err(why.to_owned());
    }
}

impl Region for ServedSeed {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let state = unpoisoned(self.state.read());
        let named = |why: &str| io::Error::other(format!("seed {}: {why}", self.id));
        match &*state {
            Ok(region) => {
                region.read(offset, into).map_err(|error| named(&farfork_sys::words::of(&error)))
            }
            Err(why) => Err(named(why)),
        }
    }
}
