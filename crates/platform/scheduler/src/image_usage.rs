//! Use of functions' images, to decide which to remove from the pool.

use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};

/// Starts remembered per image.
const REMEMBERED: usize = 1024;
const HOUR_US: u64 = 3_600_000_000;

/// What an image saves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageStats {
    /// Starts of clones in the last hour.
    pub starts_per_hour: u64,
    /// Microseconds that a start takes longer without it.
    pub saved_us: u64,
}

/// The images that functions start clones of, by what their driver calls them: a name, or a number.
#[derive(Clone, Debug)]
pub struct ImageUsage<K> {
    images: BTreeMap<K, Image>,
    /// Bytes needed for an image that did not fit.
    wanted_bytes: u64,
}

#[derive(Clone, Debug)]
struct Image {
    starts_us: VecDeque<u64>,
    saved_us: u64,
}

impl<K> Default for ImageUsage<K> {
    fn default() -> ImageUsage<K> {
        ImageUsage { images: BTreeMap::new(), wanted_bytes: 0 }
    }
}

impl<K: Ord> ImageUsage<K> {
    /// A function uses an image from now on, which saves so much per start.
    pub fn put(&mut self, image: K, saved_us: u64) {
        self.images.insert(image, Image { starts_us: VecDeque::new(), saved_us });
    }

    /// An image is not used any more.
    pub fn remove<Q: Ord + ?Sized>(&mut self, image: &Q)
    where
        K: Borrow<Q>,
    {
        self.images.remove(image);
    }

    /// Counts a start of a clone.
    pub fn start<Q: Ord + ?Sized>(&mut self, now_us: u64, image: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(image) = self.images.get_mut(image) {
            image.starts_us.push_back(now_us);
            if image.starts_us.len() > REMEMBERED {
                image.starts_us.pop_front();
            }
        }
    }

    /// What an image saves: nothing if no function uses it.
    pub fn stats<Q: Ord + ?Sized>(&mut self, now_us: u64, image: &Q) -> ImageStats
    where
        K: Borrow<Q>,
    {
        let Some(image) = self.images.get_mut(image) else { return ImageStats::default() };
        while image.starts_us.front().is_some_and(|at| now_us.saturating_sub(*at) > HOUR_US) {
            image.starts_us.pop_front();
        }
        ImageStats { starts_per_hour: image.starts_us.len() as u64, saved_us: image.saved_us }
    }

    /// Notes that an image of this size did not fit.
    pub fn want(&mut self, bytes: u64) {
        self.wanted_bytes = self.wanted_bytes.max(bytes);
    }

    /// The largest size noted since the last call, in bytes.
    pub fn take_wanted(&mut self) -> u64 {
        std::mem::take(&mut self.wanted_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_starts_of_the_last_hour_count() {
        let mut usage = ImageUsage::<&str>::default();
        let stats = |starts_per_hour| ImageStats { starts_per_hour, saved_us: 9 };
        usage.put("a", 9);
        usage.start(0, "a");
        usage.start(HOUR_US / 2, "a");
        usage.start(0, "b");
        assert_eq!(usage.stats(HOUR_US, "a"), stats(2));
        assert_eq!(usage.stats(HOUR_US + 1, "a"), stats(1));
        assert_eq!(usage.stats(0, "b"), ImageStats::default(), "no function uses it");
        (0..2000).for_each(|_| usage.start(HOUR_US, "a"));
        assert_eq!(usage.stats(HOUR_US, "a"), stats(1024));
        usage.remove("a");
        assert_eq!(usage.stats(HOUR_US, "a"), ImageStats::default());
    }

    #[test]
    fn the_largest_wanted_size_is_returned_once() {
        let mut usage = ImageUsage::<&str>::default();
        [3, 7, 5].into_iter().for_each(|bytes| usage.want(bytes));
        assert_eq!((usage.take_wanted(), usage.take_wanted()), (7, 0));
    }
}
