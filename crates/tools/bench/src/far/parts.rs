//! Images of which parts lie at the server: what a profiling clone has not touched.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use farfork_far::place::Place;
use farfork_far::start;
use farfork_node::paths;
use farfork_pool::{FarParts, ImageFile, Pool};
use farfork_types::{CHUNK_BYTES, Cid, Tiering, align_up};
use rustix::fs::{Advice, fadvise};

use super::{Far, end, failed};
use crate::cases::clone::{CloneOptions, Memory, learn_in, measure_as};
use crate::cases::{Bench, Lane};
use crate::error::{BenchError, io};
use crate::testbed::Testbed;

const START: &str = "parts-far";
/// Of the pool, beside the image and the copy of it that loses its cold parts.
const ROOM_BYTES: u64 = 64 << 20;

/// A copy of a lane's image in a pool of its own, without the cold parts.
pub struct Parts {
    path: PathBuf,
    pool: Pool,
    place: Place,
    cid: Cid,
}

impl Parts {
    /// Copies the image, has a clone record what it touches, and moves the rest to the server.
    pub fn new(lane: &mut Lane, testbed: &Testbed, far: &Far) -> Result<Parts, BenchError> {
        let (cid, id) = (lane.warm.cid, lane.warm.cid.to_string());
        let path = testbed.socket(&format!("parts-{}", lane.subject.name));
        let image_bytes = testbed.pool().find(cid)?.id.bytes;
        let pool = Pool::create(&path, 2 * align_up(image_bytes, CHUNK_BYTES) + ROOM_BYTES)?;
        let place = Place::of(&paths::run_directory(), &far.address);
        let parts = Parts { path, pool, place, cid };
        let at = [&*id, "--far", &*far.address, "--far-key"];
        parts.must_run(&["images", "pull"], &at, &far.key)?;
        learn_in(lane, testbed, Some(parts.path.clone()))?;
        parts.must_run(&["images", "tier"], &at, &far.key)?;
        Ok(parts)
    }

    fn must_run(&self, verb: &[&str], more: &[&str], key: &Path) -> Result<(), BenchError> {
        let program = crate::program::farfork()?;
        let mut command = Command::new(&program);
        command.args(verb).args(more).arg(key).arg("--pool").arg(&self.path);
        let output = command.stdin(Stdio::null()).output().map_err(io("start", &program))?;
        if output.status.success() {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(BenchError::Answer { case: verb.join(" "), reason })
    }

    fn fetched(&self) -> Result<u64, BenchError> {
        let status = start::status(&self.place).map_err(failed)?;
        let image = status.images.iter().find(|image| image.cid == self.cid.to_string());
        Ok(image.map_or(0, |image| image.fetched_bytes))
    }

    /// A clone, with nothing cached of what lies far.
    pub fn measure(&self, lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
        let far = self.place.images().join(self.cid.to_string());
        let open = File::open(&far).map_err(io("open", &far))?;
        fadvise(&open, 0, None, Advice::DontNeed)
            .map_err(|errno| io("drop", &far)(errno.into()))?;
        let before = self.fetched()?;
        let pool = Some(self.path.clone());
        let way = CloneOptions { pool, ..CloneOptions::new(self.cid, Tiering::Mow) };
        measure_as(lane, bench, &way, START, Memory::Here)?;
        let fetched = self.fetched()?.saturating_sub(before);
        let file = self.pool.find(self.cid)?;
        let in_pool = file.file().metadata().map_err(io("look at", &self.path))?.blocks() * 512;
        let case = lane.subject.case(START);
        for (metric, bytes) in [("fetched", fetched), ("pool", in_pool), ("far", far_bytes(&file))]
        {
            bench.samples.add(&case, metric, "KiB", bytes as f64 / 1024.0);
        }
        Ok(())
    }
}

fn far_bytes(file: &ImageFile) -> u64 {
    file.far().map_or(0, FarParts::bytes)
}

impl Drop for Parts {
    fn drop(&mut self) {
        end(&self.place);
    }
}
