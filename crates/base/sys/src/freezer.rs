//! Freezing a cgroup: its processes do not run, and notice only that time has passed.

use std::fs;
use std::io;
use std::path::PathBuf;

/// The freezer of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freezer {
    file: PathBuf,
    is_unified: bool,
}

impl Freezer {
    /// The freezer of a group, given its directories, one in each hierarchy; `None` if no hierarchy
    /// has a freezer.
    pub fn among(directories: &[PathBuf]) -> Option<Freezer> {
        let of = |name: &str, is_unified| {
            let mut files = directories.iter().map(|directory| directory.join(name));
            let file = files.find(|file| file.exists())?;
            Some(Freezer { file, is_unified })
        };
        of("freezer.state", false).or_else(|| of("cgroup.freeze", true))
    }

    /// Freezes all processes in it. They freeze when they return from the kernel. In cgroup v1 a
    /// fatal signal kills them only after the thaw.
    pub fn freeze(&self) -> io::Result<()> {
        fs::write(&self.file, if self.is_unified { "1" } else { "FROZEN" })
    }

    /// Thaws all processes in it.
    pub fn thaw(&self) -> io::Result<()> {
        fs::write(&self.file, if self.is_unified { "0" } else { "THAWED" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_that_freezes_is_found_and_written_to() {
        let all = tempfile::tempdir().unwrap();
        let [memory, freezer, unified] =
            ["memory", "freezer", "unified"].map(|name| all.path().join(name));
        let groups = [memory, unified.clone(), freezer.clone()];
        groups.iter().for_each(|group| fs::create_dir(group).unwrap());
        assert_eq!(Freezer::among(&groups), None);
        for (group, file, words) in [
            (unified, "cgroup.freeze", ["1", "0"]),
            (freezer, "freezer.state", ["FROZEN", "THAWED"]),
        ] {
            let file = group.join(file);
            fs::write(&file, "").unwrap();
            let found = Freezer::among(&groups).unwrap();
            found.freeze().unwrap();
            let frozen = fs::read_to_string(&file).unwrap();
            found.thaw().unwrap();
            assert_eq!([frozen, fs::read_to_string(&file).unwrap()], words);
        }
    }
}
