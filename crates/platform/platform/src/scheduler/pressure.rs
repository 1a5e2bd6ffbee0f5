//! Evictions when a node's memory, or the pool, runs out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use farfork_policy::occupant::OccupantId;
use farfork_policy::reclaim::ImageFacts;
use farfork_scheduler::{ImageStats, Occupancy, Reclaim, relief};

use super::image;
use super::nodes::{Claim, NodeGhosts};
use super::shared::Shared;

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

    /// Bytes of that which could become free.
    pub fn could_free(&self, node: &str) -> u64 {
        let ghosts = self.nodes.ghosts(node).idle;
        self.fleet.could_free(node) + ghosts.iter().map(|ghost| ghost.bytes).sum::<u64>()
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
            let name = node.node.name();
            let occupancy = || shared.occupancy(name);
            let ids = relief(node.memory, occupancy, &name, &*shared.advisor);
            if !ids.is_empty() {
                shared.evict(name, &ids);
            }
        }
    }
}

/// Removes images when the pool has no room for others.
pub async fn reclaim(shared: Arc<Shared>) {
    let mut reclaim = Reclaim::default();
    loop {
        tokio::time::sleep(RECLAIM).await;
        let (pool, wanted_bytes) = (shared.nodes.pool(), shared.image_usage.take_wanted());
        if !reclaim.is_due(pool, wanted_bytes, &*shared.advisor) {
            continue;
        }
        let Some(images) = images(&shared).await else { continue };
        for name in reclaim.chosen(pool, wanted_bytes, images, &*shared.advisor) {
            tracing::info!(image = name, "removing an image to make room for others");
            if !shared.image_usage.give_up(&name) {
                shared.remove_image(&name).await;
            }
        }
    }
}

/// The images that may be removed, if they can be listed.
async fn images(shared: &Arc<Shared>) -> Option<Vec<ImageFacts>> {
    let listed = match shared.nodes.list_images().await {
        Ok(listed) => listed,
        Err(error) => {
            tracing::warn!(%error, "cannot list images");
            return None;
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
    Some(facts.collect())
}
