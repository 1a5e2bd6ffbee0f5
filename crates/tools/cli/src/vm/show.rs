//! `farfork vm show`.

use std::error::Error;

use farfork_image::catalog::Catalog;
use farfork_image::vm::{Footprint, Monitor, Snapshot};
use farfork_pool::{ImageFile, Pool, PoolError};
use farfork_types::Cid;
use serde::Serialize;

use crate::output::print_json;
use crate::{named, size};

/// What a snapshot holds and takes.
#[derive(Serialize)]
pub(crate) struct Description {
    cid: String,
    kind: farfork_image::header::Kind,
    names: Vec<String>,
    created_unix_s: u64,
    #[serde(flatten)]
    monitor: Monitor,
    state_bytes: u64,
    #[serde(flatten)]
    footprint: Footprint,
    /// Stored pages that other snapshots of the pool store as well, each in a copy of its own.
    same_bytes: u64,
}

impl Description {
    /// Describes the snapshot in `file`.
    pub(crate) fn of(pool: &Pool, file: &ImageFile) -> Result<Description, Box<dyn Error>> {
        let snapshot = Snapshot::read_from(file)?;
        let names = Catalog::of(pool).names_of(file.id.cid)?;
        Ok(Description {
            cid: file.id.cid.to_string(),
            kind: farfork_image::header::Kind::VirtualMachine,
            names: names.iter().map(ToString::to_string).collect(),
            created_unix_s: file.id.created_unix_s,
            monitor: snapshot.monitor(),
            state_bytes: snapshot.state.len() as u64,
            footprint: snapshot.footprint(file, &pool.access(file.id.cid)?.accessed)?,
            same_bytes: snapshot.same_bytes(others(pool, file.id.cid)?),
        })
    }

    /// Prints it for people, or as one JSON document.
    pub(crate) fn print(&self, json: bool) -> Result<(), Box<dyn Error>> {
        if json {
            return Ok(print_json(self)?);
        }
        let Footprint { raw_bytes, zero_bytes, hot_bytes, cold_bytes, .. } = self.footprint;
        let Footprint { shared_bytes, pool_bytes, far_bytes, .. } = self.footprint;
        println!("image      {}  {}", self.cid, self.names.join(" "));
        let monitor = match &self.monitor {
            Monitor::Firecracker { version: Some(version) } => {
                format!("Firecracker, state version {version}")
            }
            Monitor::Firecracker { version: None } => "Firecracker".to_owned(),
            Monitor::Unknown => "not recognised".to_owned(),
        };
        println!("snapshot   {monitor}; state of {}", size::show(self.state_bytes));
        println!("memory     {}: {} zeros", size::show(raw_bytes), size::show(zero_bytes));
        println!("stored     {} hot, {} cold", size::show(hot_bytes), size::show(cold_bytes));
        println!("shared     {} with other snapshots", size::show(shared_bytes));
        let same = size::show(self.same_bytes);
        println!("same       {same} as in other snapshots, which have copies of their own");
        println!(
            "takes      {} of the pool, {} far",
            size::show(pool_bytes),
            size::show(far_bytes)
        );
        Ok(())
    }
}

/// The other snapshots of the pool. What is removed meanwhile, or damaged, is left out: the pool check reports that.
fn others(pool: &Pool, cid: Cid) -> Result<impl Iterator<Item = Snapshot>, PoolError> {
    let others = pool.images()?.into_iter().filter(move |other| *other != cid);
    Ok(others.filter_map(|other| Snapshot::read(pool, other).ok()))
}

/// Runs the subcommand.
pub(super) fn run(pool: &Pool, image: &str, json: bool) -> Result<(), Box<dyn Error>> {
    let file = pool.find(named::resolve(pool, image)?)?;
    Description::of(pool, &file)?.print(json)
}
