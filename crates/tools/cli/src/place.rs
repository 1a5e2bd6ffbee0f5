//! The directory of a new pool, with a tmpfs with huge pages on it where that hides nothing.

use std::error::Error;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farfork_pool::{maps_huge_pages, mount_tmpfs, unmount_tmpfs};
use farfork_sys::words;

/// Room for the file system's own pages beside the pool's.
const OWN_BYTES: u64 = 16 << 20;

/// What was made for a pool.
pub(crate) struct Place {
    directory: PathBuf,
    /// Directories that were missing, from the topmost.
    made: Vec<PathBuf>,
    is_mounted: bool,
}

impl Place {
    /// Makes `directory`. As root, a tmpfs with huge pages for `bytes` is mounted on it if it was
    /// missing, or if the caller asks for that (`mounts`) and nothing is there.
    pub(crate) fn prepare(
        directory: &Path,
        bytes: u64,
        mounts: bool,
    ) -> Result<Place, Box<dyn Error>> {
        let mut place =
            Place { directory: directory.to_owned(), made: Vec::new(), is_mounted: false };
        place.fill(bytes, mounts).inspect_err(|_| place.leave())?;
        Ok(place)
    }

    fn fill(&mut self, bytes: u64, mounts: bool) -> Result<(), Box<dyn Error>> {
        self.make()?;
        let directory = self.directory.display();
        if maps_huge_pages(&self.directory) || !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        if self.made.is_empty() && !mounts {
            eprintln!(
                "farfork: {directory} has no huge pages, with which clones start faster: name a \
                 directory that is not there yet, or add --mount if it is empty"
            );
            return Ok(());
        }
        if let Some(obstacle) = obstacle(&self.directory) {
            return Err(format!("cannot mount a tmpfs on {directory}: {obstacle}").into());
        }
        mount_tmpfs(&self.directory, bytes + OWN_BYTES)?;
        self.is_mounted = true;
        eprintln!("mounted a tmpfs with huge pages on {directory}");
        Ok(())
    }

    fn make(&mut self) -> Result<(), String> {
        let above = self.directory.ancestors().take_while(|place| !place.exists());
        let missing: Vec<PathBuf> = above.map(Path::to_owned).collect();
        for place in missing.into_iter().rev() {
            match fs::create_dir(&place) {
                Ok(()) => self.made.push(place),
                // By somebody else, just now.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(format!("cannot make {}: {}", place.display(), words::of(&error)));
                }
            }
        }
        Ok(())
    }

    /// Takes away what was made, once no pool came of it.
    pub(crate) fn leave(&self) {
        if self.is_mounted {
            let _ = unmount_tmpfs(&self.directory);
        }
        for place in self.made.iter().rev() {
            let _ = fs::remove_dir(place);
        }
    }
}

/// Why nothing can be mounted on a directory without hiding something.
fn obstacle(directory: &Path) -> Option<&'static str> {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let is_empty = fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none());
    if device(directory) != directory.parent().and_then(device) {
        Some("a file system is mounted there; name a directory in it that is not there yet")
    } else if !is_empty {
        Some("it is not empty; name a directory that is not there yet")
    } else {
        None
    }
}
