//! Freezing a cgroup: its processes do not run, and notice only that time has passed.

use std::fs;
use std::io;
use std::path::PathBuf;

/// What freezes a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freezer {
    file: PathBuf,
    is_unified: bool,
}

impl Freezer {
    /// That of a group of which these are the directories, one in each hierarchy; nothing if it is in none
    /// that freezes.
    pub fn among(directories: &[PathBuf]) -> Option<Freezer> {
        let of = |name: &str, is_unified| {
            let mut files = directories.iter().map(|directory| directory.join(name));
            let file = files.find(|file| file.exists())?;
            Some(Freezer { file, is_unified })
        };
        of("freezer.state", false).or_else(|| of("cgroup.freeze", true))
    }

    /// Has all in it stand still. They do as soon as they are back from the kernel; in cgroup v1 a signal
    /// that kills them does so when they are thawed.
    pub fn freeze(&self) -> io::Result<()> {
        fs::write(&self.file, if self.is_unified { "1" } else { "FROZEN" })
    }

    /// Has all in it go on.
    pub fn thaw(&self) -> io::Result<()> {
        fs::write(&self.file, if self.is_unified { "0" } else { "THAWED" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_that_freezes_is_found_and_told_in_its_words() {
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
