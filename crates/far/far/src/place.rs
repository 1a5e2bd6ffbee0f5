//! Where the far pool of a source lies on a node.
//!
//! ```text
//!  RUN/far/NAME/            NAME: the source's address, as a file name
//!    lock                   held while a far process is being started
//!    holder                 held as long as a holder, or a far process that will be one, lives
//!    socket                 what the far process listens at
//!    log                    what it prints
//!    known                  the images that the mount has
//!    orders/                in which order clones needed pages
//!    keys/                  keys of nodes that were named for one image
//!    pool/                  a pool; pool/images is the mounted file system
//! ```

use std::path::{Path, PathBuf};

/// The directory of one source.
#[derive(Debug, Clone)]
pub struct Place(PathBuf);

impl Place {
    /// That of the source at `address`, below the run directory.
    pub fn of(run: &Path, address: &str) -> Place {
        // Letters that are left out would let two addresses share one place.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let letter = |c: char| match is_plain(c) {
            true => c.to_string(),
            false => format!("+{:x}+", u32::from(c)),
        };
        Place(run.join("far").join(address.chars().map(letter).collect::<String>()))
    }

    /// The places below the run directory.
    pub fn all(run: &Path) -> Vec<Place> {
        let entries = std::fs::read_dir(run.join("far")).into_iter().flatten().flatten();
        let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        all.sort();
        all.into_iter().map(Place).collect()
    }

    /// A place whose directory is known.
    pub fn at(directory: &Path) -> Place {
        Place(directory.to_owned())
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// Its pool.
    pub fn pool(&self) -> PathBuf {
        self.0.join("pool")
    }

    /// Where the file system is mounted.
    pub fn images(&self) -> PathBuf {
        self.pool().join("images")
    }

    /// Where the far process listens.
    pub fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// Where keys of nodes lie that are named for one image. They go with the image.
    pub fn keys(&self) -> PathBuf {
        self.0.join("keys")
    }

    /// In which order clones needed pages ([`orders`](crate::orders)).
    pub fn orders(&self) -> PathBuf {
        self.0.join("orders")
    }

    /// What images the mount has.
    pub(crate) fn known(&self) -> PathBuf {
        self.0.join("known")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    pub(crate) fn holder(&self) -> PathBuf {
        self.0.join("holder")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_places_of_their_own() {
        let of = |address| Place::of(Path::new("/run/x"), address).0;
        assert_eq!(of("10.0.0.1:70"), Path::new("/run/x/far/10.0.0.1+3a+70"));
        assert_ne!(of("[::1]:7"), of("::1:7"));
        assert_eq!(of("../../etc").parent(), Some(Path::new("/run/x/far")));
    }
}
