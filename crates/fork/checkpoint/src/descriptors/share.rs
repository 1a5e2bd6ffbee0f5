//! Which descriptors are duplicates of one another.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

use farfork_sys::kcmp;
use rustix::io::Errno;

use super::error::{DescriptorError, kernel_error};
use super::table::Entry;

/// Indices into `entries` of descriptors that share one open file description, each group in the
/// order of `entries` and the groups in the order of their first.
pub fn groups(entries: &[Entry]) -> Result<Vec<Vec<usize>>, DescriptorError> {
    let mut alike: HashMap<_, Vec<usize>> = HashMap::new();
    for (index, entry) in entries.iter().enumerate() {
        let inode = (entry.inode.dev(), entry.inode.ino());
        let key = (inode, entry.info.status_flags(), entry.info.position);
        alike.entry(key).or_default().push(index);
    }
    let mut groups = Vec::new();
    for indices in alike.into_values() {
        groups.extend(split(entries, indices)?);
    }
    groups.sort_by_key(|group| group[0]);
    Ok(groups)
}

/// Splits descriptors that look alike: sorted by the kernel's own order, so that a thousand
/// eventfds take ten thousand comparisons and not half a million.
fn split(entries: &[Entry], mut indices: Vec<usize>) -> Result<Vec<Vec<usize>>, DescriptorError> {
    let mut failure: Option<(i32, Errno)> = None;
    let at = |index: usize| (entries[index].pid, entries[index].fd);
    let mut order = |left: &usize, right: &usize| {
        kcmp::order_files(at(*left), at(*right)).unwrap_or_else(|errno| {
            failure = Some((at(*left).0, errno));
            Ordering::Equal
        })
    };
    if indices.len() > 1 {
        indices.sort_by(&mut order);
    }
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in indices {
        match groups.last_mut() {
            Some(group) if order(&group[0], &index) == Ordering::Equal => group.push(index),
            _ => groups.push(vec![index]),
        }
    }
    groups.iter_mut().for_each(|group| group.sort_unstable());
    match failure {
        None => Ok(groups),
        Some((pid, errno)) => Err(kernel_error(pid, "the duplicate descriptors")(errno)),
    }
}
