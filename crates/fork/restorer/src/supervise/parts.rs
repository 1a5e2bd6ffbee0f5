//! `mremap` of a range that was one mapping in the parent, and is several in a clone: memory whose parts have
//! [policies of their own](crate::overlay::prefer_far), or of which only a part is the image's.
//!
//! The kernel grows no range of several mappings, and moves one only since Linux 6.17. So the calling thread does it
//! mapping by mapping. Nothing is copied, and each page and each policy stays as it is:
//!
//! ```text
//!  in place     │ near │ far │ near │ far ──►│      the last one grows
//!
//!  elsewhere    │ near │ far │ near │ far │         first the last one, which may be refused, then the others
//!                  ╲      ╲     ╲      ╲
//!                 │ near │ far │ near │ far ──►│    a place that is reserved, or that the program has chosen
//! ```

use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::image::{Piece, piece};
use super::job::Job;
use super::range::range;
use crate::call::{Errno, SysResult, fail};
use crate::maps;

const FIXED: u32 = k::MREMAP_MAYMOVE | k::MREMAP_FIXED;

/// Arguments of `mremap` that the kernel takes.
struct Remapping {
    start: u64,
    bytes: u64,
    new_bytes: u64,
    /// Where to, if the program has chosen that.
    to: Option<u64>,
    may_move: bool,
    /// Whether an empty range stays at the old place.
    leaves: bool,
}

impl Remapping {
    /// None if the kernel refuses them, or knows flags that this does not.
    fn from_args([start, bytes, new_bytes, flags, to, _]: [u64; 6]) -> Option<Remapping> {
        let flags = u32::try_from(flags).ok()?;
        let to = (flags & k::MREMAP_FIXED != 0).then_some(to);
        let (start, end) = range(start, bytes).ok()?;
        let (new_start, new_end) = range(to.unwrap_or(0), new_bytes).ok()?;
        let new_bytes = new_end - new_start;
        let leaves = flags & k::MREMAP_DONTUNMAP != 0;
        let may_move = flags & k::MREMAP_MAYMOVE != 0;
        let is_known = flags & !(FIXED | k::MREMAP_DONTUNMAP) == 0;
        let is_apart = to.is_none_or(|to| to >= end || new_end <= start);
        let is_valid = is_known
            && is_apart
            && (may_move || flags == 0)
            && (!leaves || new_bytes == end - start)
            && new_bytes != 0;
        is_valid.then_some(Remapping { start, bytes: end - start, new_bytes, to, may_move, leaves })
    }

    /// The end of what is not cut off.
    fn end(&self) -> u64 {
        self.start + self.bytes.min(self.new_bytes)
    }

    fn growth(&self) -> u64 {
        self.new_bytes.saturating_sub(self.bytes)
    }
}

impl Job<'_> {
    /// Performs `mremap` of several mappings if they can have been one in the parent. If not, the kernel does what it
    /// did there.
    pub(super) fn remap_parts(&self, args: [u64; 6]) -> SysResult {
        let asked = Remapping::from_args(args);
        let parts = match asked {
            Some(asked) => self.last_part(&asked)?.map(|last| (asked, last)),
            None => None,
        };
        let Some((asked, last)) = parts else { return self.call(k::__NR_mremap, args) };
        if self.is_joined_first(&asked) && self.join(&asked, &last).is_ok() {
            return self.call(k::__NR_mremap, args);
        }
        if asked.to.is_none() && !asked.leaves {
            let bytes = last.bytes() + asked.growth();
            let in_place = [last.start, last.bytes(), bytes, 0, 0, 0];
            match self.call(k::__NR_mremap, in_place) {
                Err(Errno(NO_ROOM)) if asked.may_move => {}
                done => return done.map(|_| asked.start),
            }
        }
        if !asked.leaves {
            return self.move_parts(&asked, &last);
        }
        // The program's threads may go on at the old address.
        let mut to = 0;
        self.at_standstill(|| {
            to = self.move_parts(&asked, &last)?;
            Ok(())
        })?;
        Ok(to)
    }

    /// Whether all mappings of a range have the attributes that programs rely on in common. To look at them takes long.
    pub(super) fn are_alike(&self, start: u64, end: u64) -> Result<bool, Errno> {
        let (image, changes) = (&self.supervisor.image, &self.supervisor.changes);
        if !image.has_vital_traits() && !changes.are_any() {
            return Ok(true);
        }
        self.caller.are_alike(start, end)
    }

    /// Whether a copy, after which the kernel alone grows the range, is worth its time and memory: for a program that does
    /// so again and again. It does not write meanwhile, as it lets the range move.
    fn is_joined_first(&self, asked: &Remapping) -> bool {
        let is_growth = asked.growth() > 0 && asked.may_move && !asked.leaves;
        is_growth && asked.bytes <= WORTH_A_COPY && self.supervisor.growths.add()
    }

    fn join(&self, asked: &Remapping, last: &Piece) -> Result<(), Errno> {
        let traits = self.caller.attributes(asked.start)?;
        self.make_anonymous(asked.start, asked.end(), last.prot(), traits, None)
    }

    /// The last of the mappings, if all can have been one. What only moves may be of the image.
    fn last_part(&self, asked: &Remapping) -> Result<Option<Piece>, Errno> {
        let (space, end) = (&self.caller.space, asked.end());
        let is_own = asked.growth() > 0 || asked.leaves;
        let Some(first) = piece(space, asked.start, end)? else { return Ok(None) };
        let mut last = first;
        loop {
            let mapping = &last.mapping;
            let is_anonymous = mapping.inode == 0 && mapping.flags & maps::SHARED == 0;
            if mapping.flags != first.mapping.flags || is_own && !is_anonymous {
                return Ok(None);
            }
            if last.end == end {
                break;
            }
            match piece(space, last.end, end)? {
                Some(next) if next.start == last.end => last = next,
                _ => return Ok(None),
            }
        }
        let is_one = !is_own || self.are_alike(asked.start, end)?;
        Ok(Some(last).filter(|_| first.start == asked.start && is_one))
    }

    fn move_parts(&self, asked: &Remapping, last: &Piece) -> SysResult {
        let cut_off = asked.bytes.saturating_sub(asked.new_bytes);
        if cut_off > 0 {
            self.unmap(asked.end(), cut_off)?;
        }
        let to = match asked.to {
            Some(to) => to,
            None => self.reserve(asked.new_bytes)?,
        };
        let moved = self.move_all(asked, last, to);
        if moved.is_err() && asked.to.is_none() {
            let _ = self.unmap(to, asked.new_bytes);
        }
        moved.map(|()| to)
    }

    fn move_all(&self, asked: &Remapping, last: &Piece, to: u64) -> Result<(), Errno> {
        let flags = FIXED | if asked.leaves { k::MREMAP_DONTUNMAP } else { 0 };
        let before = last.start - asked.start;
        let bytes = last.bytes() + asked.growth();
        let args = [last.start, last.bytes(), bytes, flags.into(), to + before, 0];
        self.call(k::__NR_mremap, args)?;
        let (moved, failed) = self.move_each(asked.start, to, before, flags);
        let Some(errno) = failed else { return Ok(()) };
        let space = &self.caller.space;
        let is_free = |start, bytes| matches!(piece(space, start, start + bytes), Ok(None));
        let is_place_free = is_free(asked.start, moved) && is_free(last.start, last.bytes());
        // Another thread may have mapped something there meanwhile.
        if asked.leaves || is_place_free {
            self.move_each(to, asked.start, moved, FIXED);
            let _ = self.unmap(to + before + last.bytes(), asked.growth());
            self.move_each(to + before, last.start, last.bytes(), FIXED);
        }
        Err(errno)
    }

    /// Moves the mappings of a range one by one, up to the first that cannot be moved. Returns how many bytes have moved.
    fn move_each(&self, from: u64, to: u64, bytes: u64, flags: u32) -> (u64, Option<Errno>) {
        let mut moved = 0;
        while moved < bytes {
            let at = from + moved;
            let next = piece(&self.caller.space, at, from + bytes);
            let done = match next {
                Ok(Some(next)) if next.start == at => {
                    let args = [at, next.bytes(), next.bytes(), flags.into(), to + moved, 0];
                    self.call(k::__NR_mremap, args).map(|_| next.bytes())
                }
                Ok(_) => fail(e::EFAULT),
                Err(errno) => Err(errno),
            };
            match done {
                Ok(done) => moved += done,
                Err(errno) => return (moved, Some(errno)),
            }
        }
        (moved, None)
    }

    /// Keeps a place free of what other threads map.
    fn reserve(&self, bytes: u64) -> SysResult {
        let flags = u64::from(k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE);
        self.call(k::__NR_mmap, [0, bytes, k::PROT_NONE.into(), flags, u64::MAX, 0])
    }

    fn unmap(&self, start: u64, bytes: u64) -> SysResult {
        self.call(k::__NR_munmap, [start, bytes, 0, 0, 0, 0])
    }
}

const WORTH_A_COPY: u64 = 64 << 20;
const NO_ROOM: i32 = e::ENOMEM as i32;
