//! What a keeper answers to nodes, and to those that end or renew its seed.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_far::lineage::Lineage;
use farfork_far::protocol::{self, Found, PageRange, Question};
use farfork_types::Cid;

use crate::ancestry::KeptOwners;
use crate::census::Census;
use crate::learned::Learned;
use crate::protocol::{Renewed, Request};
use crate::seed::{Phase, Seed};

/// How much longer than a seed its owners live: clones of it may fetch pages when it has expired.
pub const OWNERS_LONGER: Duration = Duration::from_secs(30);

/// What a keeper answers.
pub struct Answers {
    pub seed: Arc<Seed>,
    pub found: Found,
    /// What others own of it.
    pub lineage: Lineage,
    /// Which pages clones needed.
    pub learned: Arc<Learned>,
    /// How many clones there are.
    pub census: Arc<Census>,
    /// Seeds that have to live as long.
    pub kept: KeptOwners,
}

impl Answers {
    /// Answers one request, or refuses it with a reason.
    pub fn answer(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        if let Some(question) = protocol::decode(request) {
            return self.answer_node(&question);
        }
        match serde_json::from_slice(request) {
            Ok(Request::Outlive { expires_ms }) => {
                self.seed.outlive(from_now(expires_ms)?)?;
                Ok(b"{}".to_vec())
            }
            Ok(Request::Renew { expires_ms }) => {
                let expires = Duration::from_millis(expires_ms);
                self.seed.renew(from_now(expires_ms)?)?;
                self.kept.outlive(expires + OWNERS_LONGER);
                let renewed = Renewed { expires_unix_s: unix_s(expires) };
                serde_json::to_vec(&renewed).map_err(|error| error.to_string())
            }
            Ok(Request::Reclaim { wait_ms }) => {
                let reclaimed = self.seed.reclaim(Duration::from_millis(wait_ms));
                serde_json::to_vec(&reclaimed).map_err(|error| error.to_string())
            }
            Err(_) => {
                Err("it does not know this call: use one version of farfork on both sides"
                    .to_owned())
            }
        }
    }

    fn answer_node(&self, question: &Question) -> Result<Vec<u8>, String> {
        let id = Cid::from_bytes(self.found.cid);
        let named = |why: String| format!("seed {id}: {why}");
        match question {
            Question::Find { image } if *image != id.to_string() => {
                Err(format!("it has no image {image}, only seed {id}"))
            }
            Question::Find { .. } => {
                if let Some(life) = self.seed.find().map_err(named)? {
                    self.kept.outlive(life + OWNERS_LONGER);
                }
                Ok(protocol::encode(&self.found))
            }
            Question::Again { cid } | Question::Sources { cid } if *cid != self.found.cid => {
                Err(format!("it has no image {}, only seed {id}", Cid::from_bytes(*cid)))
            }
            Question::Again { .. } => {
                self.seed.has_pages().map_err(named)?;
                let found = self.found.clone();
                let is_open = self.seed.phase() == Phase::Open;
                Ok(protocol::encode(&if is_open { found } else { found.closing() }))
            }
            Question::Sources { .. } => Ok(protocol::encode(&self.lineage)),
            Question::Pages { .. } => Ok(protocol::encode(&self.learned.ranges())),
            Question::Touched { cid, pages } if *cid == self.found.cid => {
                self.learned.add(pages);
                Ok(Vec::new())
            }
            Question::Clones { cid, node, clones } if *cid == self.found.cid => {
                self.census.note(*node, *clones, Instant::now());
                Ok(Vec::new())
            }
            Question::Touched { cid, .. } | Question::Clones { cid, .. } => {
                Err(format!("it has no image {}, only seed {id}", Cid::from_bytes(*cid)))
            }
            // Of virtual machines alone.
            Question::Record { .. } => Ok(protocol::encode(&Vec::<PageRange>::new())),
            Question::Hold { .. } | Question::Release { .. } => {
                Err(named("a process that runs is not kept for parts of images".to_owned()))
            }
        }
    }
}

fn from_now(ms: u64) -> Result<Instant, String> {
    let at = Instant::now().checked_add(Duration::from_millis(ms));
    at.ok_or_else(|| "it cannot live so long".to_owned())
}

/// So long from now, in seconds since 1970.
pub fn unix_s(from_now: Duration) -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| (since + from_now).as_secs())
}
