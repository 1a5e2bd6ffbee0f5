//! A function's image: when it is made, of what, and when it is done without.

use std::sync::Arc;

use farfork_policy::checkpoint::{CheckpointFacts, Timing};
use farfork_scheduler::Advice;

use super::{Function, GUESSED_BYTES, GUESSED_COLD_US, Image, Message};
use crate::scheduler::instance::Instance;
use crate::scheduler::nodes::NodesError;

/// So many images are not made of a function, and then no other is tried.
const MOST_FAILED_IMAGES: u32 = 4;

impl Function {
    /// Whether an instance that has just answered is to be checkpointed.
    pub(super) fn is_due(&mut self, instance: &Instance) -> bool {
        let Image::None { next_after } = self.image else { return false };
        if self.is_gone || self.answered < next_after {
            return false;
        }
        let facts = CheckpointFacts {
            calls: instance.calls,
            recent_us: instance.recent_us.iter().copied().collect(),
            pool: self.shared.nodes.pool(),
            image_bytes: self.whole_bytes.unwrap_or(GUESSED_BYTES),
        };
        let advisor = &self.shared.advisor;
        match advisor.decide(&self.about, &facts) {
            Timing::Now => true,
            Timing::NotYet => false,
            Timing::NoRoom => {
                self.shared.image_usage.want(facts.image_bytes);
                false
            }
        }
    }

    pub(super) fn has_image(&self) -> bool {
        matches!(self.image, Image::There(_))
    }

    /// There is an image.
    pub(super) fn use_image(&mut self) {
        let outbox = self.outbox.clone();
        let give_up = move || drop(outbox.send(Message::Reclaim));
        let saved_us = self.cold_us.unwrap_or(GUESSED_COLD_US);
        self.image = Image::There(self.shared.image_usage.put(&self.image_name, saved_us, give_up));
        self.code = None;
    }

    /// Calls are made without the image, until there is another.
    pub(super) fn do_without_image(&mut self) {
        self.failed_clones = 0;
        self.image = Image::None { next_after: self.answered.saturating_mul(2) };
        let removing = self.shared.nodes.remove_image(&self.image_name);
        tokio::spawn(async { drop(removing.await) });
    }

    pub(super) fn checkpoint(&mut self, mut instance: Box<Instance>) {
        self.image = Image::InTheMaking;
        self.clone_bytes = None;
        self.busy += 1;
        let (nodes, outbox) = (Arc::clone(&self.shared.nodes), self.outbox.clone());
        let name = self.image_name.clone();
        tokio::spawn(async move {
            let result = match instance.prepare().await {
                Err(reason) => Err(NodesError::Checkpoint { reason }),
                Ok(hot) => nodes.checkpoint(instance.id, &name, hot).await,
            };
            let instance = Some(instance);
            let _ = outbox.send(Message::Checkpointed { instance, result });
        });
    }

    /// An image was larger than it was thought to be. Whether it waits for room, which others may make.
    fn needs_more(&mut self, asked_bytes: u64, free_bytes: u64) -> bool {
        let free_now = self.shared.nodes.pool().free_below(1000);
        // What it was given before it asked for more is free again.
        let needed = asked_bytes + free_now.saturating_sub(free_bytes);
        self.whole_bytes = self.whole_bytes.max(Some(needed));
        self.shared.image_usage.want(needed);
        free_now < needed
    }

    pub(super) fn checkpointed(&mut self, result: Result<(), NodesError>) {
        self.shared.metrics.starts.checkpointed(result.is_ok());
        self.counters.image_error(result.as_ref().err().map(ToString::to_string));
        match result {
            Ok(()) => {
                tracing::info!(about = self.about, image = self.image_name, "checkpointed");
                self.failed_images = 0;
                self.use_image();
            }
            Err(error) => {
                tracing::warn!(about = self.about, %error, "not checkpointed");
                self.image = Image::None { next_after: self.try_again_after(&error) };
            }
        }
    }

    /// How many calls are to be answered before an image is made again. What has failed so often is left:
    /// each time, instances stand still, and calls wait.
    fn try_again_after(&mut self, error: &NodesError) -> u64 {
        if let NodesError::NoRoom { asked_bytes, free_bytes } = *error {
            let later = if self.needs_more(asked_bytes, free_bytes) { 1 } else { 2 };
            return self.answered.saturating_mul(later);
        }
        self.failed_images += 1;
        if self.failed_images < MOST_FAILED_IMAGES {
            return self.answered.saturating_mul(2);
        }
        tracing::warn!(about = self.about, "no image is made any more: its instances start cold");
        u64::MAX
    }
}
