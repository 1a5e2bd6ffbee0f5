//! Which descriptors are duplicates of one another.

use std::cmp::Ordering;
use std::collections::HashMap;

use farfork_sys::kcmp;
use rustix::io::Errno;

use super::error::{DescriptorError, asking};
use super::table::Entry;

/// Indices into `entries` of descriptors that share one open file description, each group in the
/// order of numbers and the groups in the order of their first.
pub fn groups(pid: i32, entries: &[Entry]) -> Result<Vec<Vec<usize>>, DescriptorError> {
    let mut alike: HashMap<_, Vec<usize>> = HashMap::new();
    for (index, entry) in entries.iter().enumerate() {
        let key = (&entry.link, entry.info.status_flags(), entry.info.position);
        alike.entry(key).or_default().push(index);
    }
    let mut groups = Vec::new();
    for indices in alike.into_values() {
        groups.extend(split(pid, entries, indices)?);
    }
    groups.sort_by_key(|group| group[0]);
    Ok(groups)
}

/// Splits descriptors that look alike: sorted by the kernel's own order, so that a thousand
/// eventfds take ten thousand comparisons and not half a million.
fn split(
    pid: i32,
    entries: &[Entry],
    mut indices: Vec<usize>,
) -> Result<Vec<Vec<usize>>, DescriptorError> {
    let mut failure: Option<Errno> = None;
    let mut order = |left: &usize, right: &usize| {
        kcmp::order_files(pid, entries[*left].fd, entries[*right].fd).unwrap_or_else(|errno| {
            failure = Some(errno);
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
        Some(errno) => Err(asking(pid, "which descriptors are duplicates")(errno)),
    }
}
