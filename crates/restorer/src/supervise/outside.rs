//! Answers for a caller that cannot be traced, as when a debugger has it: what must read as zeros
//! is overwritten with zeros from here, right, at the price of the memory that the call was meant
//! to save; what would have to grow is told that there is no memory.

use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::caller::Caller;
use super::image::Image;
use super::notify::{Answer, Work};
use crate::call::Errno;

/// Answers `work` without the caller's help.
pub fn answer(image: &Image, caller: &Caller, work: &Work<'_>) -> Answer {
    match work {
        Work::Advise { ranges, advice, is_vector } => {
            let mut advised = 0;
            for [start, bytes] in *ranges {
                match clear(image, caller, *start, start.saturating_add(*bytes), *advice) {
                    Ok(()) => advised += bytes,
                    Err(errno) if advised == 0 => return Answer::Fail(errno),
                    Err(_) => break,
                }
            }
            Answer::Done(if *is_vector { advised } else { 0 })
        }
        // Callers such as `realloc` fall back to copying.
        Work::Remap { .. } => Answer::Fail(Errno(e::ENOMEM as i32)),
    }
}

fn clear(image: &Image, caller: &Caller, start: u64, end: u64, advice: u32) -> Result<(), Errno> {
    if !matches!(advice, k::MADV_DONTNEED | k::MADV_FREE | k::MADV_DONTNEED_LOCKED) {
        return Err(Errno(e::EINVAL as i32));
    }
    let memory = caller.memory()?;
    let cleared = image.pieces(&caller.space, start, end).try_for_each(|piece| {
        let piece = piece?;
        let is_private_memory = image.holds(&piece.mapping) || piece.mapping.inode == 0;
        if is_private_memory && image.file_of(&piece).is_none() {
            memory.clear(piece.start, piece.end)
        } else {
            Ok(())
        }
    });
    memory.close();
    cleared
}
