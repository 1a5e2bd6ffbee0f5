//! The one way to read memory of other nodes, whatever transports it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use crate::error::FabricError;
use crate::region::RegionKey;

/// A range of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Names the region and proves the right to read it.
    pub key: RegionKey,
    /// Where the range begins, in bytes from the region's start.
    pub offset: u64,
    /// Its length, at most [`MAX_SEGMENT_BYTES`](crate::MAX_SEGMENT_BYTES).
    pub bytes: u32,
}

/// The end of one segment's read.
#[derive(Debug)]
pub struct Completion {
    /// Index of the segment in its batch.
    pub segment: usize,
    /// All of its bytes, or why there are none.
    pub result: Result<Vec<u8>, FabricError>,
}

/// A connection to one peer.
pub trait Fabric: Send + Sync {
    /// The transport's name.
    fn name(&self) -> &'static str;

    /// Whether reads run no code of the serving process.
    fn is_one_sided(&self) -> bool;

    /// Whether those of this region do, once it has been read.
    fn is_one_sided_for(&self, _key: &RegionKey) -> bool {
        self.is_one_sided()
    }

    /// Why reads of this region do not go the way that was chosen.
    fn detour_for(&self, _key: &RegionKey) -> Option<String> {
        None
    }

    /// The peer's address, for messages.
    fn peer(&self) -> &str;

    /// Why the connection can no longer be used; `None` while it can.
    fn broken(&self) -> Option<FabricError>;

    /// Starts to read many segments. Waits while too many bytes are in flight.
    ///
    /// # Errors
    ///
    /// The connection is broken, a segment is too long, or the deadline has passed. No segment of the batch
    /// is completed then.
    fn submit(&self, segments: &[Segment], deadline: Instant) -> Result<Batch, FabricError>;

    /// Has the serving node's service answer a request.
    ///
    /// # Errors
    ///
    /// As with [`Fabric::submit`], or the service refused.
    fn call(&self, request: &[u8], deadline: Instant) -> Result<Vec<u8>, FabricError>;

    /// Reads one segment of up to `into.len()` bytes, and waits for it.
    ///
    /// # Errors
    ///
    /// As with [`Fabric::submit`], or the segment was refused.
    fn read(
        &self,
        key: RegionKey,
        offset: u64,
        into: &mut [u8],
        deadline: Instant,
    ) -> Result<(), FabricError> {
        let segments = split(key, offset, into.len());
        let mut batch = self.submit(&segments, deadline)?;
        while let Some(completion) = batch.next() {
            let at = (segments[completion.segment].offset - offset) as usize;
            let bytes = completion.result?;
            into[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}

/// Segments of the largest size that cover a range.
fn split(key: RegionKey, offset: u64, bytes: usize) -> Vec<Segment> {
    let most = crate::MAX_SEGMENT_BYTES as usize;
    let starts = (0..bytes.max(1)).step_by(most);
    starts
        .map(|at| Segment { key, offset: offset + at as u64, bytes: (bytes - at).min(most) as u32 })
        .collect()
}

/// Segments in progress.
#[derive(Debug)]
pub struct Batch {
    peer: String,
    deadline: Instant,
    completions: Receiver<Completion>,
    /// Which segments have no completion yet.
    open: Vec<bool>,
    left: usize,
}

/// Where a transport hands in the completions of a batch.
#[derive(Debug, Clone)]
pub struct Completions(Sender<Completion>);

impl Completions {
    /// Hands in a completion. Nothing happens when the batch was dropped.
    pub fn put(&self, completion: Completion) {
        let _ = self.0.send(completion);
    }
}

impl Batch {
    /// A batch of so many segments, and where its completions are handed in.
    pub fn new(peer: &str, segments: usize, deadline: Instant) -> (Batch, Completions) {
        let (sender, completions) = channel();
        let open = vec![true; segments];
        let batch = Batch { peer: peer.to_owned(), deadline, completions, open, left: segments };
        (batch, Completions(sender))
    }

    /// Waits for the next completion, in whichever order they come; `None` after the last one. Segments that
    /// are not complete at the deadline end with an error.
    #[expect(clippy::should_implement_trait, reason = "it waits, which loops should show")]
    pub fn next(&mut self) -> Option<Completion> {
        while self.left > 0 {
            let wait = self.deadline.saturating_duration_since(Instant::now());
            let completion = match self.completions.recv_timeout(wait) {
                Ok(completion) => completion,
                Err(ended) => self.give_up(&ended),
            };
            // A transport that completes a segment twice must not count for another one.
            if let Some(open) = self.open.get_mut(completion.segment)
                && std::mem::take(open)
            {
                self.left -= 1;
                return Some(completion);
            }
        }
        None
    }

    /// Waits for all segments; their bytes in the order of submission.
    ///
    /// # Errors
    ///
    /// The first error of a segment.
    pub fn wait(mut self) -> Result<Vec<Vec<u8>>, FabricError> {
        let mut all = vec![Vec::new(); self.open.len()];
        while let Some(completion) = self.next() {
            all[completion.segment] = completion.result?;
        }
        Ok(all)
    }

    fn give_up(&self, ended: &RecvTimeoutError) -> Completion {
        let peer = self.peer.clone();
        let error = match ended {
            RecvTimeoutError::Timeout => FabricError::DeadlinePassed { peer },
            RecvTimeoutError::Disconnected => {
                FabricError::Broken { peer, why: "it was closed".to_owned() }
            }
        };
        let segment = self.open.iter().position(|open| *open).unwrap_or(self.open.len());
        Completion { segment, result: Err(error) }
    }
}
