//! Reads that failed, as the far process has recorded them: one JSON document a line, in a file of the far
//! pool, so that they survive the far process. The file is small: the oldest lines go.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use farfork_types::Cid;
use serde::{Deserialize, Serialize};

/// Its name in the far pool.
const NAME: &str = "failures";
/// A file of so many bytes is made anew of its last half.
const MAX_BYTES: u64 = 256 << 10;

/// A read that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// When, in microseconds since 1970.
    pub unix_us: u64,
    /// The process whose access it was, as the far process sees it; 0 if it does not.
    pub pid: u32,
    /// The image, 32 hexadecimal digits.
    pub cid: String,
    /// Number of the page in the image's file.
    pub page: u64,
    /// The serving node.
    pub source: String,
    /// The reason.
    pub cause: String,
}

/// Writes the records.
pub struct Recorder {
    path: PathBuf,
    writing: Mutex<()>,
}

impl Recorder {
    /// Of the far pool in this directory.
    pub fn new(pool: &Path) -> Recorder {
        Recorder { path: pool.join(NAME), writing: Mutex::new(()) }
    }

    /// Adds a record. A record that cannot be written is lost: the read has failed in any case.
    pub fn record(&self, failure: &Failure) {
        let Ok(_one) = self.writing.lock() else { return };
        let _ = self.append(failure);
    }

    fn append(&self, failure: &Failure) -> io::Result<()> {
        if fs::metadata(&self.path).is_ok_and(|found| found.len() > MAX_BYTES) {
            let text = fs::read_to_string(&self.path)?;
            let middle = text.len() / 2;
            let half = text.find('\n').map_or("", |_| {
                let end = text.bytes().skip(middle).position(|byte| byte == b'\n');
                end.map_or("", |end| &text[middle + end + 1..])
            });
            fs::write(&self.path, half)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).mode(0o600).open(&self.path)?;
        let line = serde_json::to_string(failure)? + "\n";
        file.write_all(line.as_bytes())
    }
}

/// All records of the far pool in this directory, oldest first; none if it is not a far pool.
pub fn all(pool: &Path) -> Vec<Failure> {
    let text = fs::read_to_string(pool.join(NAME)).unwrap_or_default();
    // A line that is being written is not whole.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The failure that ended a clone of `cid` with SIGBUS: the last of one of its processes, or else of its
/// image, since the clone was started.
pub fn of_clone(pool: &Path, cid: Cid, pids: &[i32], since_unix_us: u64) -> Option<Failure> {
    let cid = cid.to_string();
    let mut failures = all(pool);
    failures.retain(|failure| failure.cid == cid && failure.unix_us >= since_unix_us);
    let is_its = |failure: &&Failure| pids.iter().any(|pid| *pid as u32 == failure.pid);
    let own = failures.iter().rev().find(is_its);
    own.or(failures.last()).cloned()
}

/// Microseconds since 1970.
pub fn now_unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(pid: u32, page: u64, unix_us: u64) -> Failure {
        let cid = Cid::from_bytes([9; 16]).to_string();
        let (source, cause) = ("tcp://a:1".to_owned(), "it broke".to_owned());
        Failure { unix_us, pid, cid, page, source, cause }
    }

    #[test]
    fn the_clones_own_failure_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::new(folder.path());
        let cid = Cid::from_bytes([9; 16]);
        assert_eq!(of_clone(folder.path(), cid, &[5], 0), None);
        for record in [failure(5, 1, 10), failure(5, 2, 20), failure(6, 3, 30)] {
            recorder.record(&record);
        }
        let found = |pids: &[i32], since| of_clone(folder.path(), cid, pids, since).map(|f| f.page);
        assert_eq!(found(&[5], 0), Some(2));
        assert_eq!(found(&[7, 6], 0), Some(3));
        assert_eq!(found(&[7], 0), Some(3));
        assert_eq!(found(&[5], 25), Some(3));
        assert_eq!(found(&[5], 31), None);
        assert_eq!(of_clone(folder.path(), Cid::from_bytes([8; 16]), &[5], 0), None);
    }

    #[test]
    fn the_file_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::new(folder.path());
        for page in 0..5000 {
            recorder.record(&failure(1, page, page));
        }
        let all = all(folder.path());
        assert_eq!(all.last().unwrap().page, 4999);
        assert!(all.windows(2).all(|pair| pair[0].page + 1 == pair[1].page));
        assert!(fs::metadata(folder.path().join(NAME)).unwrap().len() < MAX_BYTES + 1000);
    }
}
