//! What a node does once per image before its first clone: read it, check that it fits.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use farfork_image::compile::supplied;
use farfork_image::format::Image;
use farfork_image::model::Offsets;
use farfork_image::{clocks, machine, tier};
use farfork_plan::protocol::{PidMode, Request};
use farfork_plan::sources::{SourceFile, SourcePart};
use farfork_pool::{ImageFile, Medium, Pool};

use crate::error::RestoreError;
use crate::sources::{self, Sources};

/// An image that this node can start clones of.
#[derive(Debug)]
pub struct AttachedImage {
    /// The image.
    pub image: Image,
    /// What its clones map lies on.
    pub medium: Medium,
    /// The copy that its clones map instead of its own file.
    copy: Option<OwnedFd>,
    /// Where its bytes are.
    pub sources: Sources,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageSource {
    /// The image itself, in the pool, and on another node where parts of it lie there.
    #[default]
    Pool,
    /// A copy of the image in this machine's memory, which is made first.
    Copy,
    /// Every second block of the image itself, the others of a copy. For tests: nothing that a clone does
    /// may depend on how many files its image is in.
    Split,
}

/// Reads and checks the image in `file` for use on this machine. One with far parts has its
/// [far file](ImageFile::with_far_file), and that is the same image.
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
    let failed = |source| RestoreError::Restorer { doing: "look at the image", source };
    let own = || sources::identity(file.file()).map_err(failed);
    let (copy, sources, medium) = match source {
        ImageSource::Pool | ImageSource::Split if file.far().is_some() => {
            (None, mixed(file, own()?)?, Medium::Other)
        }
        ImageSource::Pool => (None, Sources::one(own()?), file.medium()?),
        ImageSource::Copy => {
            let copy = File::from(pool.copy(file)?);
            let sources = Sources::one(sources::identity(&copy).map_err(failed)?);
            (Some(copy.into()), sources, Medium::Tmpfs)
        }
        ImageSource::Split => {
            let copy = File::from(pool.copy(file)?);
            let parts = every_second_block(file.id.bytes);
            let sources = Sources::several(own()?, vec![copy], parts).map_err(failed)?;
            (None, sources, file.medium()?)
        }
    };
    let clocks = shift(&image)?;
    Ok(AttachedImage { image, medium, clocks, copy, sources })
}

/// The parts of an image that lie on another node come from there, the rest from the pool.
fn mixed(file: &ImageFile, own: SourceFile) -> Result<Sources, RestoreError> {
    let failed =
        |source| RestoreError::Restorer { doing: "look at the far parts of the image", source };
    let (Some(far), Some(far_file)) = (file.far(), file.far_file()) else {
        return Err(failed(io::ErrorKind::NotConnected.into()));
    };
    tier::demand_same(file, &far.source)?;
    let part = |part: &std::ops::Range<u64>| SourcePart {
        place: part.start,
        bytes: part.end - part.start,
        file: 0,
        offset: part.start,
    };
    let parts = far.parts.iter().map(part).collect();
    let others = vec![far_file.try_clone().map_err(failed)?];
    Sources::several(own, others, parts).map_err(failed)
}

/// Bytes of a block that is in one file, if an image is split. No window of 2 MiB is in one file then.
const BLOCK_BYTES: u64 = 128 << 10;

fn every_second_block(bytes: u64) -> Vec<SourcePart> {
    let blocks = (BLOCK_BYTES..bytes).step_by(2 * BLOCK_BYTES as usize);
    let part =
        |place| SourcePart { place, bytes: BLOCK_BYTES.min(bytes - place), file: 0, offset: place };
    blocks.map(part).collect()
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

    /// The request that makes a clone which waits before its last steps, in a namespace of its own.
    pub fn request_waiting(&self) -> Request {
        let expected = supplied(&self.image.model).len();
        Request { waits: 1, ..self.request(PidMode::New, expected, false) }
    }

    /// The request that starts a clone. With `keeps_groups` it has the groups of its agent.
    pub fn request(&self, mode: PidMode, external_count: usize, keeps_groups: bool) -> Request {
        let own = self.sources.own();
        let request = Request {
            plan_offset: self.image.plan_offset,
            plan_bytes: self.image.plan_bytes,
            pid_mode: mode as u32,
            external_count: external_count as u32,
            image_device: own.device,
            image_inode: own.inode,
            sources_bytes: self.sources.table_bytes(),
            source_count: self.sources.other_count() as u32,
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
