//! Use of functions' images under a lock, with what it takes to have functions give them up.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use farfork_scheduler::{ImageStats, ImageUsage};
use farfork_sys::sync::locked;

use crate::clock::Clock;

/// The images that functions start clones of.
#[derive(Debug, Default)]
pub struct SharedImageUsage {
    state: Mutex<State>,
    clock: Clock,
}

#[derive(Default)]
struct State {
    usage: ImageUsage<String>,
    /// Asks the function of an image to give it up.
    give_up: BTreeMap<String, Box<dyn Fn() + Send>>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("usage", &self.usage).finish_non_exhaustive()
    }
}

/// A function's use of its image, until this is dropped.
#[derive(Debug)]
pub struct ImageSlot {
    image_usage: Arc<SharedImageUsage>,
    name: String,
}

impl SharedImageUsage {
    /// The state and the time.
    fn state(&self) -> (MutexGuard<'_, State>, u64) {
        // Every step leaves the tables valid.
        let state = locked(&self.state);
        // Read under the lock, so that times do not decrease.
        (state, self.clock.now_us())
    }

    /// Registers a function's use of its image.
    pub fn put(
        self: &Arc<SharedImageUsage>,
        name: &str,
        saved_us: u64,
        give_up: impl Fn() + Send + 'static,
    ) -> ImageSlot {
        let (mut state, _) = self.state();
        state.usage.put(name.to_owned(), saved_us);
        state.give_up.insert(name.to_owned(), Box::new(give_up));
        ImageSlot { image_usage: Arc::clone(self), name: name.to_owned() }
    }

    /// What an image saves: nothing if no function uses it.
    pub fn stats(&self, name: &str) -> ImageStats {
        let (mut state, now_us) = self.state();
        state.usage.stats(now_us, name)
    }

    /// Asks the function that uses this image to give it up; returns false if none uses it.
    pub fn give_up(&self, name: &str) -> bool {
        let (state, _) = self.state();
        let give_up = state.give_up.get(name);
        give_up.inspect(|give_up| give_up()).is_some()
    }

    /// Notes that an image of this size did not fit.
    pub fn want(&self, bytes: u64) {
        self.state().0.usage.want(bytes);
    }

    /// The largest size noted since the last call, in bytes.
    pub fn take_wanted(&self) -> u64 {
        self.state().0.usage.take_wanted()
    }
}

impl ImageSlot {
    /// Counts a start of a clone.
    pub fn start(&self) {
        let (mut state, now_us) = self.image_usage.state();
        state.usage.start(now_us, &self.name);
    }
}

impl Drop for ImageSlot {
    fn drop(&mut self) {
        let (mut state, _) = self.image_usage.state();
        state.usage.remove(&self.name);
        let give_up = state.give_up.remove(&self.name);
        drop(state);
        // What it holds is dropped without the lock.
        drop(give_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(start_paused = true)]
    async fn the_function_is_asked_to_give_up_its_image() {
        let image_usage = Arc::<SharedImageUsage>::default();
        let asked = Arc::new(AtomicU32::new(0));
        let counts = Arc::clone(&asked);
        let slot = image_usage.put("a", 9, move || {
            counts.fetch_add(1, Ordering::Relaxed);
        });
        slot.start();
        assert_eq!(image_usage.stats("a"), ImageStats { starts_per_hour: 1, saved_us: 9 });
        assert!(image_usage.give_up("a") && !image_usage.give_up("b"));
        drop(slot);
        assert!(!image_usage.give_up("a"));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert_eq!(image_usage.stats("a"), ImageStats::default());
        image_usage.want(7);
        assert_eq!((image_usage.take_wanted(), image_usage.take_wanted()), (7, 0));
    }
}
