//! Descriptors whose other end is outside of an image.

use farfork_image::compile::{Supplied, externals};
use farfork_image::model::{Model, OpenFile};
use serde::Serialize;

/// An external descriptor, which the caller of restore supplies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct External {
    /// The parents' pid of its process, unless that is the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// Its number there.
    pub fd: u32,
    /// What it was.
    pub what: String,
}

impl External {
    /// Those of an image.
    pub(crate) fn all(model: &Model) -> Vec<External> {
        let external = |Supplied { member, fd, file }| {
            let process = (member != 0).then(|| model.members[member as usize].process.pid);
            let what = match &model.files[file as usize] {
                OpenFile::External { description } => description.clone(),
                _ => String::new(),
            };
            External { process, fd, what }
        };
        externals(model).into_iter().map(external).collect()
    }

    /// Whether a clone gets its caller's own, if that supplies no other.
    pub fn has_default(&self) -> bool {
        const LAST_STREAM: u32 = 2;
        self.fd <= LAST_STREAM
    }
}
