//! Where the content of shared objects goes, and copying it there.

use std::fs::File;
use std::os::unix::fs::FileExt;

use farfork_image::layout;
use farfork_image::model::{ObjectExtent, Segment, SharedObject, Stored};
use farfork_sys::stored;

use super::Objects;
use crate::copy::placed;
use crate::error::{CheckpointError, doing};
use crate::runs::{self, Run};

/// Objects whose extents have a place in the image.
#[derive(Debug)]
pub struct Layout {
    /// As they go into the model.
    pub objects: Vec<SharedObject>,
    /// The addresses that stand for their content, if there is any.
    area: Option<Run>,
    files: Vec<File>,
}

impl Objects {
    /// Gives every part that is not a hole its place.
    pub fn lay_out(self) -> Result<Layout, CheckpointError> {
        let mut layout = Layout { objects: Vec::new(), area: None, files: Vec::new() };
        let mut stored = SharedObject::AREA;
        for found in self.found {
            let mut object = found.object;
            for (offset, end) in stored::parts(&found.file, object.size).map_err(|errno| {
                doing(found.pid, "find the data in the shared memory")(errno.into())
            })? {
                let bytes = end - offset;
                object.extents.push(ObjectExtent { offset, bytes, stored });
                stored += bytes;
            }
            layout.objects.push(object);
            layout.files.push(found.file);
        }
        if stored > SharedObject::AREA {
            layout.area = Some((SharedObject::AREA, stored));
        }
        Ok(layout)
    }
}

impl Layout {
    /// The content in chunks from number `first` of the image on.
    pub fn content(&self, first: u64) -> Stored {
        let windows = runs::windows(self.area.as_slice());
        let segments = layout::content(&windows, first);
        Stored { windows, segments }
    }

    /// Copies the content to where `segments` have it in `data`, the chunks of its image. Returns the
    /// bytes copied.
    pub fn copy(
        &self,
        pid: i32,
        segments: &[Segment],
        data: &mut [u8],
    ) -> Result<u64, CheckpointError> {
        let mut copied = 0;
        for (file, from) in self.extents() {
            let run = (from.stored, from.stored + from.bytes);
            for (start, end, at) in placed(&[run], segments) {
                let to = &mut data[at..at + (end - start) as usize];
                copied += read(file, from.offset + (start - from.stored), to)
                    .map_err(doing(pid, "read the shared memory"))?;
            }
        }
        Ok(copied)
    }

    fn extents(&self) -> impl Iterator<Item = (&File, &ObjectExtent)> {
        let objects = self.files.iter().zip(&self.objects);
        objects.flat_map(|(file, object)| object.extents.iter().map(move |extent| (file, extent)))
    }
}

/// Reads up to the end of the file; what lies behind it in the last page is zeros.
fn read(file: &File, offset: u64, to: &mut [u8]) -> std::io::Result<u64> {
    let mut done = 0;
    while done < to.len() {
        match file.read_at(&mut to[done..], offset + done as u64)? {
            0 => break,
            got => done += got,
        }
    }
    Ok(done as u64)
}
