//! What a node does once per image before its first clone: read it, check that it fits.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use farfork_image::compile::supplied;
use farfork_image::format::Image;
use farfork_image::model::Offsets;
use farfork_image::{clocks, machine};
use farfork_plan::protocol::{PidMode, Request};
use farfork_pool::{ImageFile, Medium, Pool};

use crate::error::RestoreError;

/// An image that this node can start clones of.
#[derive(Debug)]
pub struct AttachedImage {
    /// The image.
    pub image: Image,
    /// What its clones map lies on.
    pub medium: Medium,
    /// The copy that its clones map instead of its own file.
    copy: Option<OwnedFd>,
    /// Device and inode of what they map.
    device: u64,
    inode: u64,
    clocks: Option<Shift>,
}

/// The time namespace of an image's clones.
#[derive(Clone, Copy, Debug)]
struct Shift {
    offsets: Offsets,
    /// Ahead of this process.
    ahead: Offsets,
}

/// What clones of an image map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// The image itself, in the pool.
    Pool,
    /// A copy of the image in this machine's memory, which is made first.
    Copy,
}

/// Reads and checks the image in `file` for use on this machine.
pub fn attach(
    pool: &Pool,
    file: &ImageFile,
    source: ImageSource,
) -> Result<AttachedImage, RestoreError> {
    let image = Image::read_from(file)?;
    let cid = file.id.cid;
    if let Some(reason) = machine::obstacle(&image.model.made_on, machine::this()) {
        return Err(RestoreError::Incompatible { cid, reason });
    }
    let (copy, medium) = match source {
        ImageSource::Pool => (None, pool.medium()),
        ImageSource::Copy => (Some(File::from(pool.copy(file)?)), Medium::Tmpfs),
    };
    let mapped = copy.as_ref().unwrap_or(file.file()).metadata();
    let mapped =
        mapped.map_err(|source| RestoreError::Restorer { doing: "look at the image", source })?;
    let device = mapped.dev();
    let (major, minor) = (u64::from(libc::major(device)), u64::from(libc::minor(device)));
    let clocks = shift(&image)?;
    Ok(AttachedImage {
        image,
        medium,
        clocks,
        copy: copy.map(OwnedFd::from),
        device: major << 32 | minor,
        inode: mapped.ino(),
    })
}

/// All clones of an image have the same clock offsets, which are computed once.
fn shift(image: &Image) -> Result<Option<Shift>, RestoreError> {
    let here = clocks::here()
        .map_err(|source| RestoreError::Restorer { doing: "read the clocks", source })?;
    let offsets = clocks::needed(&image.model.made_on.clocks, &here);
    Ok(offsets.map(|offsets| Shift { offsets, ahead: offsets.from(here.ahead) }))
}

impl AttachedImage {
    /// The copy that clones map, if they do not map the image itself.
    pub fn copy(&self) -> Option<&OwnedFd> {
        self.copy.as_ref()
    }

    /// Device and inode of what clones map, as in the request.
    pub fn mapped_file(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// The request that makes a clone which waits before its last steps, in a namespace of its own.
    pub fn request_waiting(&self) -> Request {
        let expected = supplied(&self.image.model).len();
        Request { waits: 1, ..self.request(PidMode::New, expected, false) }
    }

    /// The request that starts a clone. With `keeps_groups` it has the groups of its agent.
    pub fn request(&self, mode: PidMode, external_count: usize, keeps_groups: bool) -> Request {
        let request = Request {
            plan_offset: self.image.plan_offset,
            plan_bytes: self.image.plan_bytes,
            pid_mode: mode as u32,
            external_count: external_count as u32,
            image_device: self.device,
            image_inode: self.inode,
            keeps_groups: keeps_groups.into(),
            ..Request::default()
        };
        match self.clocks {
            None => request,
            Some(Shift { offsets, ahead }) => Request {
                sets_clocks: 1,
                clocks_ns: [offsets.monotonic_ns, offsets.boottime_ns],
                ahead_ns: ahead.monotonic_ns,
                ..request
            },
        }
    }
}
