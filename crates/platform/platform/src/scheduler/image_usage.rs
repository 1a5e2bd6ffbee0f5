//! Use of functions' images, to decide which to remove.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Starts remembered per image.
const REMEMBERED: usize = 1024;
const HOUR: Duration = Duration::from_secs(3600);

/// The images that functions start clones of.
#[derive(Debug, Default)]
pub struct ImageUsage {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    /// Bytes needed for an image that did not fit.
    wanted_bytes: u64,
}

struct Entry {
    starts: VecDeque<Instant>,
    saved_us: u64,
    /// Asks its function to give it up.
    give_up: Box<dyn Fn() + Send>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("saved_us", &self.saved_us).finish_non_exhaustive()
    }
}

/// What an image saves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageStats {
    /// Starts of clones in the last hour.
    pub starts_per_hour: u64,
    /// Microseconds that a start takes longer without it.
    pub saved_us: u64,
}

/// A function's use of its image, until this is dropped.
#[derive(Debug)]
pub struct ImageSlot {
    image_usage: Arc<ImageUsage>,
    name: String,
}

impl ImageUsage {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves the table valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a function's use of its image.
    pub fn put(
        self: &Arc<ImageUsage>,
        name: &str,
        saved_us: u64,
        give_up: impl Fn() + Send + 'static,
    ) -> ImageSlot {
        let entry = Entry { starts: VecDeque::new(), saved_us, give_up: Box::new(give_up) };
        self.state().entries.insert(name.to_owned(), entry);
        ImageSlot { image_usage: Arc::clone(self), name: name.to_owned() }
    }

    /// What an image saves: nothing if no function uses it.
    pub fn stats(&self, name: &str) -> ImageStats {
        let mut state = self.state();
        let Some(entry) = state.entries.get_mut(name) else { return ImageStats::default() };
        let now = Instant::now();
        while entry.starts.front().is_some_and(|at| now - *at > HOUR) {
            entry.starts.pop_front();
        }
        ImageStats { starts_per_hour: entry.starts.len() as u64, saved_us: entry.saved_us }
    }

    /// Asks the function that uses this image to give it up; returns false if none uses it.
    pub fn give_up(&self, name: &str) -> bool {
        let state = self.state();
        let entry = state.entries.get(name);
        entry.inspect(|entry| (entry.give_up)()).is_some()
    }

    /// Notes that an image of this size did not fit.
    pub fn want(&self, bytes: u64) {
        let mut state = self.state();
        state.wanted_bytes = state.wanted_bytes.max(bytes);
    }

    /// The largest size noted since the last call, in bytes.
    pub fn take_wanted(&self) -> u64 {
        std::mem::take(&mut self.state().wanted_bytes)
    }
}

impl ImageSlot {
    /// Counts a start of a clone.
    pub fn start(&self) {
        if let Some(entry) = self.image_usage.state().entries.get_mut(&self.name) {
            entry.starts.push_back(Instant::now());
            if entry.starts.len() > REMEMBERED {
                entry.starts.pop_front();
            }
        }
    }
}

impl Drop for ImageSlot {
    fn drop(&mut self) {
        self.image_usage.state().entries.remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(start_paused = true)]
    async fn only_starts_of_the_last_hour_count() {
        let image_usage = Arc::<ImageUsage>::default();
        let slot = image_usage.put("a", 9, || {});
        slot.start();
        tokio::time::advance(HOUR / 2).await;
        slot.start();
        assert_eq!(image_usage.stats("a"), ImageStats { starts_per_hour: 2, saved_us: 9 });
        tokio::time::advance(HOUR / 2 + Duration::from_secs(1)).await;
        assert_eq!(image_usage.stats("a").starts_per_hour, 1);
        assert_eq!(image_usage.stats("b"), ImageStats::default());
    }

    #[test]
    fn the_function_is_asked_to_give_up_its_image() {
        let image_usage = Arc::<ImageUsage>::default();
        let asked = Arc::new(AtomicU32::new(0));
        let counts = Arc::clone(&asked);
        let slot = image_usage.put("a", 0, move || {
            counts.fetch_add(1, Ordering::Relaxed);
        });
        assert!(image_usage.give_up("a") && !image_usage.give_up("b"));
        drop(slot);
        assert!(!image_usage.give_up("a"));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_largest_wanted_size_is_returned_once() {
        let image_usage = ImageUsage::default();
        for bytes in [3, 7, 5] {
            image_usage.want(bytes);
        }
        assert_eq!((image_usage.take_wanted(), image_usage.take_wanted()), (7, 0));
    }
}
