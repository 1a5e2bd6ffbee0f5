//! Images by number: what is decided often compares and copies no names.

use std::collections::BTreeMap;

/// An image of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(u64);

impl ImageId {
    /// Before all others.
    pub const FIRST: ImageId = ImageId(0);
}

/// The names of images. A name that is forgotten and comes again gets another number.
#[derive(Clone, Debug, Default)]
pub struct Images {
    ids: BTreeMap<String, ImageId>,
    names: BTreeMap<ImageId, String>,
    last: u64,
}

impl Images {
    /// The image of this name, which gets a number if it has none.
    pub fn add(&mut self, name: &str) -> ImageId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        self.last += 1;
        let id = ImageId(self.last);
        self.ids.insert(name.to_owned(), id);
        self.names.insert(id, name.to_owned());
        id
    }

    /// The image of this name, if it has a number.
    pub fn find(&self, name: &str) -> Option<ImageId> {
        self.ids.get(name).copied()
    }

    /// The name of an image; nothing once it is forgotten.
    pub fn name(&self, id: ImageId) -> &str {
        self.names.get(&id).map_or("", String::as_str)
    }

    /// Forgets an image.
    pub fn forget(&mut self, id: ImageId) {
        if let Some(name) = self.names.remove(&id) {
            self.ids.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_comes_again_has_another_number() {
        let mut images = Images::default();
        let (a, b) = (images.add("a"), images.add("b"));
        assert_eq!((images.add("a"), images.find("b")), (a, Some(b)));
        assert_eq!((images.name(a), images.name(b)), ("a", "b"));
        images.forget(a);
        assert_eq!((images.find("a"), images.name(a)), (None, ""));
        let again = images.add("a");
        assert!(again != a && again != b && ImageId::FIRST < a);
    }
}
