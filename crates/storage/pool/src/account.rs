//! Whose memory the pool is: a memory cgroup of its own, so that an image is not charged to the
//! process that happened to write it. Both versions of the cgroup file system are served.

use farfork_sys::words;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use crate::charge;
use crate::map::GatherMap;
use crate::media::{self, Medium};

/// Where the pool's memory is charged to.
#[derive(Debug)]
pub(crate) struct Account {
    medium: Medium,
    /// The cgroup, or why there is none.
    group: Result<Group, String>,
}

#[derive(Debug)]
struct Group {
    dir: PathBuf,
    root: PathBuf,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Account {
    /// The account of the pool with this uuid; makes nothing yet.
    pub(crate) fn of(uuid: [u8; 16], medium: Medium) -> Account {
        let group = match medium {
            Medium::Tmpfs => Group::locate(uuid),
            _ => Err("the medium is not charged to memory cgroups".to_owned()),
        };
        Account { medium, group }
    }

    /// An account that each writer pays for itself.
    pub(crate) fn of_writers(medium: Medium, why: &str) -> Account {
        Account { medium, group: Err(why.to_owned()) }
    }

    /// The cgroup, made if it is not there; or why there is none.
    fn group(&self) -> Result<&Group, String> {
        let group = self.group.as_ref().map_err(String::clone)?;
        group.make().map(|()| group)
    }

    /// Gives memory to a range of `file`.
    pub(crate) fn reserve(&self, file: &File, range: &Range<u64>) -> io::Result<()> {
        let map = GatherMap::new(file, range.end)?;
        if let Ok(group) = self.group()
            && let Some(done) = charge::reserve_in(&group.members()?, file, &map, range)
        {
            return done;
        }
        media::reserve(self.medium, file, range)?;
        map.gather(range);
        Ok(())
    }

    /// For people: the cgroup, or that the writer pays and why.
    pub(crate) fn describe(&self) -> String {
        match self.group() {
            Ok(group) => group.dir.display().to_string(),
            Err(why) => format!("charged to the writer: {why}"),
        }
    }

    /// Deletes the cgroup; what is still charged to it goes with its pages.
    pub(crate) fn delete(&self) -> io::Result<()> {
        match &self.group {
            Ok(group) if group.dir.is_dir() => fs::remove_dir(&group.dir),
            _ => Ok(()),
        }
    }
}

impl Group {
    fn locate(uuid: [u8; 16]) -> Result<Group, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
        let (root, version) =
            hierarchy(&mounts).ok_or("no memory cgroup hierarchy is mounted".to_owned())?;
        let name: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Group { dir: root.join(format!("farfork-pool-{name}")), root, version })
    }

    fn make(&self) -> Result<(), String> {
        if self.version == Version::V2 {
            // Fails where it is enabled already or may not be; the look at `gauge` decides.
            let _ = fs::write(self.root.join("cgroup.subtree_control"), "+memory");
        }
        match fs::create_dir(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let reason = words::of(&error);
                return Err(format!("cannot make {}: {reason}", self.dir.display()));
            }
            _ => {}
        }
        if self.gauge().exists() {
            return Ok(());
        }
        let _ = fs::remove_dir(&self.dir);
        Err(format!("the memory controller is not enabled in {}", self.root.display()))
    }

    /// The file with the bytes charged.
    fn gauge(&self) -> PathBuf {
        self.dir.join(match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        })
    }

    fn members(&self) -> io::Result<CString> {
        let path = self.dir.join("cgroup.procs").into_os_string().into_encoded_bytes();
        Ok(CString::new(path)?)
    }
}

/// The mount point of the hierarchy that has the memory controller: version 1 if it is mounted,
/// for a controller is in one hierarchy only.
fn hierarchy(mounts: &str) -> Option<(PathBuf, Version)> {
    let find = |wanted: &dyn Fn(&str, &str) -> bool| {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (dir, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            wanted(kind, options).then(|| PathBuf::from(dir))
        })
    };
    let v1 = |kind: &str, options: &str| {
        kind == "cgroup" && options.split(',').any(|option| option == "memory")
    };
    let v1_root = find(&v1).map(|root| (root, Version::V1));
    v1_root.or_else(|| find(&|kind, _| kind == "cgroup2").map(|root| (root, Version::V2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n\
        cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
    const V2: &str = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,relatime 0 0\n";

    #[test]
    fn the_hierarchy_with_the_memory_controller_is_found() {
        assert_eq!(hierarchy(V1), Some(("/sys/fs/cgroup/memory".into(), Version::V1)));
        assert_eq!(hierarchy(V2), Some(("/sys/fs/cgroup".into(), Version::V2)));
        assert_eq!(hierarchy("proc /proc proc rw 0 0\n"), None);
    }
}
