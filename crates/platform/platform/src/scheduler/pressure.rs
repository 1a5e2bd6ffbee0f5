//! Evictions when a node's memory, or the pool, runs out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use farfork_policy::Memory;
use farfork_policy::occupant::OccupantId;
use farfork_policy::reclaim::{ImageFacts, ReclaimFacts};
use farfork_policy::relief::ReliefFacts;
use farfork_scheduler::Advice;

use super::image;
use super::image_usage::ImageStats;
use super::nodes::{Claim, NodeGhosts};
use super::platform::Shared;
use farfork_scheduler::Occupancy;

/// Period of the check of nodes' memory.
const RELIEF: Duration = Duration::from_millis(250);
/// Period of the check of the pool.
const RECLAIM: Duration = Duration::from_secs(1);

impl Shared {
    /// What is on a node: instances, and waiting ghosts, which count as idle.
    pub fn occupancy(&self, node: &str) -> Occupancy {
        let mut instances = self.fleet.on(node);
        let NodeGhosts { idle, is_settling } = self.nodes.ghosts(node);
        instances.idle.extend(idle);
        instances.is_settling |= is_settling;
        instances
    }

    /// Evicts these instances and ghosts if they are still idle.
    pub fn evict(&self, node: &str, ids: &[OccupantId]) {
        self.fleet.evict(ids);
        let (bytes, ending) = self.nodes.stop_ghosts(node, ids);
        if bytes > 0 {
            let leaving = self.fleet.leaving(node, bytes);
            tokio::spawn(async move {
                ending.await;
                drop(leaving);
            });
        }
    }
}

/// Evicts what is idle where busy instances have come to need its memory.
pub async fn relieve(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(RELIEF).await;
        for node in shared.nodes.nodes(Claim::default(), None) {
            let Occupancy { idle, leaving_bytes, .. } = shared.occupancy(&node.name);
            let facts = ReliefFacts { memory: node.memory, idle, leaving_bytes };
            let decision = shared.advisor.consider(&facts);
            // A decision to evict nothing is not recorded.
            if !decision.choice.is_empty() {
                shared.advisor.record(&node.name, &facts, &decision);
                shared.evict(&node.name, &decision.choice);
            }
        }
    }
}

/// Removes images when the pool has no room for others.
pub async fn reclaim(shared: Arc<Shared>) {
    let mut kept_all = None;
    loop {
        tokio::time::sleep(RECLAIM).await;
        let (pool, wanted_bytes) = (shared.nodes.pool(), shared.image_usage.take_wanted());
        // A cheap check with one fictitious image, before all images are listed.
        let all = ImageFacts { bytes: pool.used_bytes, ..ImageFacts::default() };
        let facts = ReclaimFacts { pool, wanted_bytes, images: vec![all] };
        if shared.advisor.consider(&facts).choice.is_empty() {
            continue;
        }
        for name in chosen(&shared, pool, wanted_bytes, &mut kept_all).await {
            tracing::info!(image = name, "removing an image to make room for others");
            if !shared.image_usage.give_up(&name) {
                shared.remove_image(&name).await;
            }
        }
    }
}

/// The images to remove. Not decided again while the facts are those of the last decision to keep
/// all.
async fn chosen(
    shared: &Arc<Shared>,
    pool: Memory,
    wanted_bytes: u64,
    kept_all: &mut Option<ReclaimFacts>,
) -> Vec<String> {
    let listed = match shared.nodes.list_images().await {
        Ok(listed) => listed,
        Err(error) => {
            tracing::warn!(%error, "cannot list images");
            return Vec::new();
        }
    };
    // Images of the operator, such as base images, must not be removed.
    let own = shared.ask_store(|store| image::names(store)).await;
    let own: BTreeSet<String> = own.unwrap_or_default().into_iter().collect();
    let facts = listed.into_iter().filter(|image| own.contains(&image.name)).map(|image| {
        let ImageStats { starts_per_hour, saved_us } = shared.image_usage.stats(&image.name);
        let (name, bytes, nodes) = (image.name, image.bytes, image.nodes);
        ImageFacts { name, bytes, nodes, starts_per_hour, saved_us }
    });
    let facts = ReclaimFacts { pool, wanted_bytes, images: facts.collect() };
    // Without anything to decide, no decision is recorded.
    if facts.images.is_empty() || kept_all.as_ref() == Some(&facts) {
        return Vec::new();
    }
    let chosen = shared.advisor.decide(&"pool", &facts);
    *kept_all = chosen.is_empty().then_some(facts);
    chosen
}
