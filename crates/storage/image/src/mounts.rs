//! Mounts, and whether a node has those that an image's files lay on.
//!
//! `/proc/PID/mountinfo` is read here and not by the procfs crate, which leaves blanks in paths
//! escaped.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::model::Mount;

/// What a ghost's own writable layer over a directory of the node calls itself (`source` of its mount). Each ghost
/// begins with the node's files there.
pub const LAYER: &str = "farfork-layer";

/// A mount as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine {
    /// Id, unique in the kernel.
    pub id: u64,
    /// Id of the mount that it is on.
    pub parent: u64,
    /// `major:minor` of the file system.
    pub device: String,
    /// Directory or file of the file system that is mounted.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// Options of the mount, separated by commas.
    pub options: String,
    /// Type of the file system.
    pub fs_type: String,
    /// What the file system says that it is made of.
    pub source: String,
}

/// The mounts of the process, or `self`, in the order in which they were made.
pub fn read(process: &str) -> io::Result<Vec<MountLine>> {
    let text = fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// `id parent major:minor root point options [tags…] - type source super-options`.
fn parse(line: &[u8]) -> Option<MountLine> {
    let mut own = line.split(|byte| *byte == b' ').map(unescaped);
    let mut next = || own.next();
    let number = |field: OsString| field.to_str()?.parse().ok();
    let (id, parent) = (number(next()?)?, number(next()?)?);
    let (device, root, point, options) = (next()?, next()?, next()?, next()?);
    let mut file_system = own.skip_while(|field| field != "-").skip(1);
    let text = |field: OsString| field.to_string_lossy().into_owned();
    Some(MountLine {
        id,
        parent,
        device: text(device),
        root: root.into(),
        point: point.into(),
        options: text(options),
        fs_type: text(file_system.next()?),
        source: text(file_system.next()?),
    })
}

/// Blanks, tabs, line feeds and backslashes are three octal digits after a backslash.
fn unescaped(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(plain)
}

/// Id of the mount that `path` leads to; a symbolic link at its end is not followed.
pub fn id_at(path: &Path) -> io::Result<u64> {
    Ok(statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID)?.stx_mnt_id)
}

/// File systems that are compared by what they are made of, since several of one type may be
/// mounted and none of them is this machine's own.
fn is_from_elsewhere(fs_type: &str) -> bool {
    const TYPES: [&str; 12] = [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "ceph",
        "9p",
        "virtiofs",
        "overlay",
        "glusterfs",
        "lustre",
        "beegfs",
        "afs",
    ];
    TYPES.contains(&fs_type) || fs_type.starts_with("fuse.")
}

/// Where a node has what a process with `mounts` sees as `path`.
pub fn on_node(mounts: &[Mount], path: &Path) -> PathBuf {
    let below = |mount: &Mount| path.strip_prefix(&mount.point).ok().map(Path::to_owned);
    let last = mounts.iter().rev().find_map(|mount| Some((mount, below(mount)?)));
    match last.and_then(|(mount, below)| Some((mount.bound_from.as_ref()?, below))) {
        // Joined to nothing, a path would end in a slash.
        Some((from, below)) if below.as_os_str().is_empty() => from.clone(),
        Some((from, below)) => from.join(below),
        None => path.to_owned(),
    }
}

/// Every mount of an image that this node does not have, in words.
pub fn changed_mounts(mounts: &[Mount]) -> Vec<String> {
    if mounts.is_empty() {
        return Vec::new();
    }
    match read("self") {
        Ok(here) => (0..mounts.len())
            .filter_map(|index| change(&mounts[index], &mounts[..index], &here))
            .collect(),
        Err(_) => vec!["the mounts of this node cannot be read from /proc".to_owned()],
    }
}

/// How `mount`, which is made after those `before` it, differs.
fn change(mount: &Mount, before: &[Mount], here: &[MountLine]) -> Option<String> {
    let point = mount.point.display();
    if let Some(source) = &mount.bound_from {
        let is_directory = |path: &Path| fs::metadata(path).map(|found| found.is_dir()).ok();
        match (is_directory(source), is_directory(&on_node(before, &mount.point))) {
            (None, _) => {
                return Some(format!("{}, to be mounted on {point}, is missing", source.display()));
            }
            (Some(one), Some(other)) if one == other => {}
            _ => return Some(format!("{point} is nothing that {} fits on", source.display())),
        }
    }
    let at = mount.bound_from.as_ref().unwrap_or(&mount.point);
    let Some(found) = id_at(at).ok().and_then(|id| here.iter().find(|line| line.id == id)) else {
        return Some(format!("{point} is missing on this node"));
    };
    let (was, is) = (kind(&mount.fs_type, &mount.source), kind(&found.fs_type, &found.source));
    (was != is).then(|| format!("{} was on {was} and is on {is} here", at.display()))
}

fn kind(fs_type: &str, source: &str) -> String {
    if is_from_elsewhere(fs_type) { format!("{fs_type} of {source}") } else { fs_type.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    fn mount(point: &str, fs_type: &str) -> Mount {
        Mount { point: point.into(), fs_type: fs_type.into(), ..Mount::default() }
    }

    #[test]
    fn lines_become_mounts() {
        let line = br"36 35 98:0 /a\040b /mnt/c\134d rw,noatime master:1 - ext3 /dev/x\040y rw";
        let mount = parse(line).unwrap();
        assert_eq!((mount.id, mount.parent, mount.device.as_str()), (36, 35, "98:0"));
        assert_eq!((mount.root, mount.point), ("/a b".into(), r"/mnt/c\d".into()));
        assert_eq!((mount.fs_type.as_str(), mount.source.as_str()), ("ext3", "/dev/x y"));
        assert_eq!(mount.options, "rw,noatime");
        // Without tags, and not UTF-8.
        let line = b"36 35 98:0 / /mnt/caf\xe9 rw - tmpfs none rw";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point.as_os_str().as_bytes(), b"/mnt/caf\xe9");
        assert_eq!(mount.fs_type, "tmpfs");
    }

    #[test]
    fn another_kind_of_file_system_is_told() {
        let proc = mount("/proc", "proc");
        assert_eq!(changed_mounts(std::slice::from_ref(&proc)), Vec::<String>::new());
        let other = [mount("/proc", "ext4"), mount("/nowhere/at/all", "ext4"), proc.clone()];
        let changed = changed_mounts(&other);
        assert_eq!(changed[0], "/proc was on ext4 and is on proc here");
        assert_eq!(changed[1], "/nowhere/at/all is missing on this node");
        assert_eq!(changed.len(), 2);
        let bound =
            |from: &str| changed_mounts(&[Mount { bound_from: Some(from.into()), ..proc.clone() }]);
        assert_eq!(bound("/nowhere"), ["/nowhere, to be mounted on /proc, is missing"]);
        assert_eq!(bound("/proc/version"), ["/proc is nothing that /proc/version fits on"]);
        assert_eq!(bound("/proc/1"), Vec::<String>::new());
    }

    #[test]
    fn paths_are_followed_through_bind_mounts() {
        let bound = |point: &str, from: &str| Mount {
            bound_from: Some(from.into()),
            ..mount(point, "ext4")
        };
        let mounts = [mount("/", "ext4"), bound("/a", "/x"), bound("/a/b", "/y"), mount("/c", "")];
        for (path, found) in
            [("/a", "/x"), ("/a/d", "/x/d"), ("/a/b/d", "/y/d"), ("/ab", "/ab"), ("/c/a", "/c/a")]
        {
            assert_eq!(on_node(&mounts, Path::new(path)), Path::new(found));
        }
    }

    #[test]
    fn network_file_systems_are_told_apart_by_their_sources() {
        assert_ne!(kind("nfs4", "a:/x"), kind("nfs4", "b:/x"));
        assert_eq!(kind("ext4", "/dev/sda1"), kind("ext4", "/dev/vda"));
    }
}
