//! Files that have their name when they are complete.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The path of a file that is renamed when it is complete. Dropped before that, it is removed.
pub(crate) struct UnfinishedFile {
    path: PathBuf,
    target: PathBuf,
}

impl UnfinishedFile {
    /// Creates the file beside the one that it becomes.
    pub(crate) fn beside(target: &Path) -> io::Result<(UnfinishedFile, File)> {
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = target.with_file_name(format!(".{name}.{}.unfinished", std::process::id()));
        // It holds memory of processes, as the pool does: for its owner alone.
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        Ok((UnfinishedFile { path, target: target.to_owned() }, file))
    }

    /// Gives the file its name. An existing file is replaced.
    pub(crate) fn finish(self, file: &File) -> io::Result<()> {
        file.sync_all()?;
        fs::rename(&self.path, &self.target)?;
        let directory = self.target.parent().filter(|path| !path.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all())
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
