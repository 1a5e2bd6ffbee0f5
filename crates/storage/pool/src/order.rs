//! The order in which pages of an image were first needed.
//!
//! ```text
//!  tables/CID/order
//!   0   magic "farforkO"    8     16  id of the image     16
//!   8   version (1)         4     32  epoch                8
//!  12   checksum of all     4     40  entries              8
//!                                 48  reserved            16
//!  64   entries: numbers of pages, 4 bytes each
//! ```
//! All numbers are little-endian. It lies beside the [side tables](crate::tables), which say which pages those
//! are, and follows their rules: it is replaced as a whole, under the lock of the pool, and counts for nothing
//! once accessed bits were reset, because its epoch is over then.

use std::io::Read;

use farfork_types::Cid;
use rustix::fs::OFlags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::PoolError;
use crate::layout::TABLES;
use crate::pool::Pool;

/// Its name in the directory of an image's tables.
pub(crate) const NAME: &str = "order";

const MAGIC: u64 = u64::from_le_bytes(*b"farforkO");
const VERSION: u32 = 1;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct OrderHeader {
    magic: u64,
    version: u32,
    /// crc32c of the whole file with 0 in this place.
    checksum: u32,
    cid: [u8; 16],
    epoch: u64,
    entries: u64,
    reserved: [u64; 2],
}

const _: () = assert!(size_of::<OrderHeader>() == 64);

fn encode(cid: Cid, epoch: u64, pages: &[u32]) -> Vec<u8> {
    let rest: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
    let header = OrderHeader {
        magic: MAGIC,
        version: VERSION,
        checksum: 0,
        cid: cid.to_bytes(),
        epoch,
        entries: pages.len() as u64,
        reserved: [0; 2],
    };
    let sum = crc32c::crc32c_append(crc32c::crc32c(header.as_bytes()), &rest);
    [OrderHeader { checksum: sum, ..header }.as_bytes(), &rest].concat()
}

/// Epoch and pages; `None` if the bytes are not those of an order of `cid`.
fn decode(bytes: &[u8], cid: Cid) -> Option<(u64, Vec<u32>)> {
    let (header, rest) = OrderHeader::read_from_prefix(bytes).ok()?;
    let without = OrderHeader { checksum: 0, ..header };
    let sum = crc32c::crc32c_append(crc32c::crc32c(without.as_bytes()), rest);
    let is_sound = (header.magic, header.version, header.cid) == (MAGIC, VERSION, cid.to_bytes())
        && header.entries.checked_mul(4) == Some(rest.len() as u64)
        && sum == header.checksum;
    let pages = rest.as_chunks::<4>().0.iter().map(|page| u32::from_le_bytes(*page));
    is_sound.then(|| (header.epoch, pages.collect()))
}

impl Pool {
    /// Numbers of pages of the image `cid` in the order in which they were first needed, as far as that was
    /// recorded.
    ///
    /// # Errors
    /// As [`access_tables`](Pool::access_tables).
    pub fn access_order(&self, cid: Cid) -> Result<Vec<u32>, PoolError> {
        let epoch = self.epochs(cid)?.accessed;
        let found = self.read_order(cid)?;
        Ok(found.filter(|found| found.0 == epoch).map(|(_, pages)| pages).unwrap_or_default())
    }

    /// Adds pages behind those that are there, each once.
    ///
    /// # Errors
    /// As [`add_users_bits`](Pool::add_users_bits).
    pub fn add_access_order(&self, cid: Cid, pages: &[u32]) -> Result<(), PoolError> {
        let _lock = self.lock()?;
        self.demand_image(cid)?;
        let mut all = self.access_order(cid)?;
        let mut known: std::collections::HashSet<u32> = all.iter().copied().collect();
        all.extend(pages.iter().copied().filter(|page| known.insert(*page)));
        self.put_beside_tables(cid, NAME, &encode(cid, self.epochs(cid)?.accessed, &all))
    }

    fn read_order(&self, cid: Cid) -> Result<Option<(u64, Vec<u32>)>, PoolError> {
        let name = format!("{TABLES}/{cid}/{NAME}");
        let opened = self.directory.open_file(&name, OFlags::RDONLY);
        let opened = opened.map_err(self.directory.failed("open", &name))?;
        let Some(mut file) = opened else { return Ok(None) };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(self.directory.failed("read", &name))?;
        decode(&bytes, cid).map(Some).ok_or_else(|| self.damaged_tables(cid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn an_order_comes_back_and_no_changed_byte_goes_unnoticed() {
        let at = [offset_of!(OrderHeader, checksum), offset_of!(OrderHeader, epoch)];
        assert_eq!((at, offset_of!(OrderHeader, entries)), ([12, 32], 40));
        let cid = Cid::from_bytes([7; 16]);
        let bytes = encode(cid, 3, &[9, 1, u32::MAX]);
        assert_eq!(decode(&bytes, cid), Some((3, vec![9, 1, u32::MAX])));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(decode(&changed, cid), None, "byte {at}");
            assert_eq!(decode(&bytes[..at], cid), None, "{at} bytes");
        }
        assert_eq!(decode(&bytes, Cid::from_bytes([8; 16])), None);
    }
}
