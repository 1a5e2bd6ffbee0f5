//! Runs of pages: sorted ranges of addresses, and the windows of an image that hold them.

use farfork_image::model::StoredWindow;
use farfork_types::{CHUNK_BYTES, PAGE_BYTES, align_down, align_up};

/// A run of pages: first address and address after the last.
pub type Run = (u64, u64);

/// Takes the guard pages, which cannot be read, out of sorted runs.
pub fn without(runs: Vec<Run>, guards: &[Run]) -> Vec<Run> {
    let mut left = Vec::new();
    for (start, end) in runs {
        let mut at = start;
        let first = guards.partition_point(|guard| guard.1 <= start);
        for guard in guards[first..].iter().take_while(|guard| guard.0 < end) {
            left.extend((guard.0 > at).then_some((at, guard.0)));
            at = guard.1;
        }
        left.extend((at < end).then_some((at, end)));
    }
    left
}

/// In a stored window every byte of a file must be right, touched or not.
pub fn whole_windows(runs: &[Run], start: u64, end: u64) -> Vec<Run> {
    let mut whole: Vec<Run> = Vec::new();
    for run in runs {
        let from = align_down(run.0, CHUNK_BYTES).max(start);
        let to = align_up(run.1, CHUNK_BYTES).min(end);
        match whole.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => whole.push((from, to)),
        }
    }
    whole
}

/// The windows that hold `runs`, with their pages marked.
pub fn windows(runs: &[Run]) -> Vec<StoredWindow> {
    let mut windows: Vec<StoredWindow> = Vec::new();
    for (start, end) in runs {
        for page in (*start..*end).step_by(PAGE_BYTES as usize) {
            let address = align_down(page, CHUNK_BYTES);
            if windows.last().is_none_or(|last| last.address != address) {
                windows.push(StoredWindow { address, pages: Default::default() });
            }
            let index = ((page - address) / PAGE_BYTES) as usize;
            if let Some(window) = windows.last_mut() {
                window.pages[index / 64] |= 1 << (index % 64);
            }
        }
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_are_cut_out_of_runs() {
        let guards = [(2, 3), (5, 6), (9, 12)];
        assert_eq!(without(vec![(0, 10)], &guards), [(0, 2), (3, 5), (6, 9)]);
        assert_eq!(
            without(vec![(2, 3), (4, 5), (6, 8), (11, 13)], &guards),
            [(4, 5), (6, 8), (12, 13)]
        );
        assert_eq!(without(vec![(0, 1)], &[]), [(0, 1)]);
    }
}
