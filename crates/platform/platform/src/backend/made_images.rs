//! Names of images that this platform has made, in a file of its state.
//!
//! A platform that is killed after an update or a deletion may leave the image of an old version.
//! The next one finds it by this file. Without it, images of others in the pool could not be
//! distinguished, and these must never be removed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use farfork_sys::sync::locked;

/// The names of images that were made and not removed, or are being made.
#[derive(Debug)]
pub struct MadeImages {
    file: PathBuf,
    names: Mutex<BTreeSet<String>>,
}

impl MadeImages {
    /// Reads the names in a platform's state.
    pub fn read(state: &Path) -> MadeImages {
        let file = state.join("images");
        let names = read(&file).unwrap_or_else(|error| {
            let (file, error) = (file.display(), farfork_sys::words::of(&error));
            tracing::warn!(%file, error, "cannot read which images were made; old ones stay");
            BTreeSet::new()
        });
        MadeImages { file, names: Mutex::new(names) }
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Every step leaves the set valid.
        locked(&self.names)
    }

    /// All names.
    pub fn all(&self) -> Vec<String> {
        self.names().iter().cloned().collect()
    }

    /// Adds a name, before its image is made.
    pub fn add(&self, name: &str) {
        let mut names = self.names();
        if names.insert(name.to_owned()) {
            self.write(&names);
        }
    }

    /// Removes a name, after its image was removed.
    pub fn remove(&self, name: &str) {
        let mut names = self.names();
        if names.remove(name) {
            self.write(&names);
        }
    }

    fn write(&self, names: &BTreeSet<String>) {
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        // Renamed into place, so that a reader sees a complete file.
        let new = self.file.with_extension("new");
        if let Err(error) = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.file)) {
            let (file, error) = (self.file.display(), farfork_sys::words::of(&error));
            tracing::warn!(%file, error, "cannot record which images were made; one may stay if the platform is killed");
        }
    }
}

fn read(file: &Path) -> io::Result<BTreeSet<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_restart() {
        let state = tempfile::tempdir().unwrap();
        let made = MadeImages::read(state.path());
        assert!(made.all().is_empty());
        ["guest/b:1", "guest/a:1", "guest/c:1"].iter().for_each(|name| made.add(name));
        made.remove("guest/b:1");
        made.remove("guest/x:1");
        let next = MadeImages::read(state.path());
        assert_eq!(next.all(), ["guest/a:1", "guest/c:1"]);
        fs::write(state.path().join("images"), [0xff]).unwrap();
        assert!(MadeImages::read(state.path()).all().is_empty());
    }
}
