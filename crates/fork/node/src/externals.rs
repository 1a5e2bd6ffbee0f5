//! The external descriptors of a clone, from the caller's descriptors.

use std::os::fd::{AsFd, OwnedFd};

use farfork_image::compile::{Supplied, externals, replaceables};
use farfork_image::model::{Model, OpenFile};
use farfork_sys::words;
use farfork_types::wire::{InheritedFd, RestoreCall};
use rustix::fs::{Mode, OFlags, open};

use crate::addresses;
use crate::error::NodeError;

/// The caller's descriptors, each of what is not a standard stream with its place.
struct CallerFds {
    streams: Vec<OwnedFd>,
    others: Vec<(InheritedFd, OwnedFd)>,
}

/// The external descriptors in the order of the plan: those that it needs, then the optional ones. An
/// optional one that was not given has a stand-in.
///
/// # Errors
/// A descriptor is missing, or the image does not take one that was given.
pub fn gather(
    model: &Model,
    call: &RestoreCall,
    mut fds: Vec<OwnedFd>,
) -> Result<Vec<OwnedFd>, NodeError> {
    let others = fds.split_off(fds.len().min(3));
    let others = call.inherit.iter().copied().zip(others).collect();
    let mut given = CallerFds { streams: fds, others };
    let mut gathered = Vec::new();
    for wanted in externals(model) {
        let found = match given.take(model, wanted) {
            None => given.stream(wanted)?,
            taken => taken,
        };
        gathered.push(found.ok_or_else(|| missing(model, call, wanted))?);
    }
    for wanted in replaceables(model) {
        let found = given.take(model, wanted);
        if found.is_none() {
            addresses::clear(model, wanted);
        }
        gathered.push(found.map_or_else(stand_in, Ok)?);
    }
    match given.others.first() {
        Some((place, _)) => {
            Err(NodeError::NeedlessDescriptor { name: call.name.clone(), place: *place })
        }
        None => Ok(gathered),
    }
}

impl CallerFds {
    fn take(&mut self, model: &Model, wanted: Supplied) -> Option<OwnedFd> {
        let index = self.others.iter().position(|(place, _)| is_meant(model, *place, wanted))?;
        Some(self.others.remove(index).1)
    }

    /// A copy of the caller's standard stream.
    fn stream(&self, wanted: Supplied) -> Result<Option<OwnedFd>, NodeError> {
        let stream = self.streams.get(wanted.fd as usize);
        stream.map(|stream| stream.as_fd().try_clone_to_owned()).transpose().map_err(|error| {
            let words = words::of(&error);
            NodeError::Agent(format!(
                "cannot duplicate a descriptor: {words}; look for limits of open files"
            ))
        })
    }
}

/// Whether `place` is a number at which the wanted file is. A number of no process is the root's,
/// or that of the only process that wants anything there.
fn is_meant(model: &Model, place: InheritedFd, wanted: Supplied) -> bool {
    let has = |member: usize| {
        let own = &model.members[member].descriptors;
        own.iter().any(|own| own.fd == place.fd && own.file == wanted.file)
    };
    if let Some(pid) = place.process {
        return (0..model.members.len())
            .any(|member| model.members[member].process.pid == pid && has(member));
    }
    let is_same = wanted.fd == place.fd;
    let others = externals(model).into_iter().chain(replaceables(model));
    let mut others = others.filter(|other| other.fd == place.fd && *other != wanted);
    is_same && (wanted.member == 0 || others.next().is_none())
}

fn missing(model: &Model, call: &RestoreCall, wanted: Supplied) -> NodeError {
    let description = match &model.files[wanted.file as usize] {
        OpenFile::External { description } => description.clone(),
        _ => String::new(),
    };
    let pid = model.members[wanted.member as usize].process.pid;
    let process = (wanted.member != 0).then_some(pid);
    let place = InheritedFd { process, fd: wanted.fd };
    NodeError::MissingDescriptor { name: call.name.clone(), place, description }
}

/// Stands in a request for a descriptor that was not given.
pub fn stand_in() -> Result<OwnedFd, NodeError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    open("/", flags, Mode::empty()).map_err(|errno| {
        NodeError::Agent(format!(
            "cannot open /: {}; look for limits of open files",
            words::of(&errno.into())
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_image::model::{Descriptor, Member};
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    /// Two processes: standard output is one file in both, 7 a file of each.
    fn model() -> Model {
        let outside = |text: &str| OpenFile::External { description: text.to_owned() };
        let descriptor = |fd, file| Descriptor { fd, file, cloexec: false };
        let member = |pid, descriptors: Vec<Descriptor>| {
            let mut member = Member { descriptors, ..Member::default() };
            member.process.pid = pid;
            member
        };
        let members = vec![
            member(10, vec![descriptor(1, 0), descriptor(7, 1)]),
            member(11, vec![descriptor(1, 0), descriptor(7, 2), descriptor(8, 3)]),
        ];
        let files = ["a terminal", "a pipe", "another pipe", "a socket"].map(outside).to_vec();
        Model { members, files, ..Model::default() }
    }

    fn fds(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| File::open("/dev/null").unwrap().into()).collect()
    }

    fn call(places: &[(Option<u32>, u32)]) -> RestoreCall {
        RestoreCall {
            pool: PathBuf::new(),
            cid: String::new(),
            name: "demo/two".to_owned(),
            timeout_s: 60,
            detach: false,
            same_pid: false,
            ghost: None,
            inherit: places
                .iter()
                .map(|(process, fd)| InheritedFd { process: *process, fd: *fd })
                .collect(),
            tiering: farfork_types::Tiering::Mow,
            local_share: None,
            profile: false,
            requested_ns: 0,
        }
    }

    #[test]
    fn a_number_is_the_roots_or_the_only_one() {
        let given = fds(6);
        let raw: Vec<i32> = given.iter().map(AsRawFd::as_raw_fd).collect();
        let call = call(&[(None, 8), (Some(11), 7), (None, 7)]);
        let gathered = gather(&model(), &call, given).unwrap();
        let seen: Vec<i32> = gathered.iter().map(AsRawFd::as_raw_fd).collect();
        // Standard output, the root's 7, the other's 7 and 8.
        assert_eq!(seen[1..], [raw[5], raw[4], raw[3]]);
    }

    #[test]
    fn a_missing_descriptor_is_named_with_its_process() {
        let text = gather(&model(), &call(&[(None, 7)]), fds(4)).unwrap_err().to_string();
        assert!(text.contains("--inherit-fd 11:7=PATH"), "{text}");
        let places = call(&[(None, 7), (Some(11), 7), (None, 8), (None, 9)]);
        let text = gather(&model(), &places, fds(7)).unwrap_err().to_string();
        assert!(text.contains("descriptor 9"), "{text}");
    }
}
