//! A function's image: when it is made, of what, and when it is done without.

use std::sync::Arc;

use farfork_scheduler::{Due, NotMade};

use super::{Function, Message};
use crate::scheduler::instance::Instance;
use crate::scheduler::nodes::NodesError;

impl Function {
    /// Whether an instance that has just answered is to be checkpointed.
    pub(super) fn is_due(&self, instance: &Instance) -> bool {
        if self.is_gone {
            return false;
        }
        let pool = self.shared.nodes.pool();
        match self.state.is_due(&instance.history, pool, &*self.shared.advisor) {
            Due::Now => true,
            Due::No => false,
            Due::NoRoom(bytes) => {
                self.shared.image_usage.want(bytes);
                false
            }
        }
    }

    /// There is an image, made now or by an earlier run.
    pub(super) fn use_image(&mut self, was_made: bool) {
        let outbox = self.outbox.clone();
        let give_up = move || drop(outbox.send(Message::Reclaim));
        self.state.image_is_there(was_made);
        let saved_us = self.state.saved_us();
        let slot = self.shared.image_usage.put(&self.image_name, saved_us, give_up);
        self.image_slot = Some(slot);
        self.drop_unneeded_code();
    }

    /// Calls are made without the image, until there is another.
    pub(super) fn do_without_image(&mut self) {
        self.state.do_without_image();
        self.remove_image();
    }

    /// Removes the image, which is not used any more.
    pub(super) fn remove_image(&mut self) {
        self.image_slot = None;
        let removing = self.shared.nodes.remove_image(&self.image_name);
        tokio::spawn(async { drop(removing.await) });
    }

    pub(super) fn checkpoint(&mut self, mut instance: Box<Instance>) {
        self.state.checkpoint();
        let (nodes, outbox) = (Arc::clone(&self.shared.nodes), self.outbox.clone());
        let (name, has_region) = (self.image_name.clone(), self.region.is_some());
        tokio::spawn(async move {
            let result = match instance.prepare().await {
                Err(reason) => Err(NodesError::Checkpoint { reason }),
                Ok(hot) => nodes.checkpoint(instance.id, &name, hot, has_region).await,
            };
            let instance = Some(instance);
            let _ = outbox.send(Message::Checkpointed { instance, result });
        });
    }

    pub(super) fn checkpointed(&mut self, result: Result<(), NodesError>) {
        self.shared.metrics.starts.checkpointed(result.is_ok());
        self.counters.image_error(result.as_ref().err().map(ToString::to_string));
        match result {
            Ok(()) => {
                tracing::info!(about = self.about, image = self.image_name, "checkpointed");
                self.use_image(true);
            }
            Err(error) => {
                tracing::warn!(about = self.about, %error, "not checkpointed");
                self.not_checkpointed(&error);
            }
        }
    }

    fn not_checkpointed(&mut self, error: &NodesError) {
        let why = match *error {
            NodesError::NoRoom { asked_bytes, free_bytes } => {
                NotMade::NoRoom { asked_bytes, free_bytes }
            }
            _ => NotMade::Other,
        };
        let free_now_bytes = self.shared.nodes.pool().free_below(1000);
        let after = self.state.image_not_made(why, free_now_bytes);
        if let Some(bytes) = after.wanted_bytes {
            self.shared.image_usage.want(bytes);
        }
        if after.is_last {
            tracing::warn!(
                about = self.about,
                "no image is made any more: its instances start cold"
            );
        }
    }
}
