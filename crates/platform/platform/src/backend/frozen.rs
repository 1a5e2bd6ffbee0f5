//! Instances that have nothing to do stand still, and go on for their next call.
//!
//! It is their ghosts' cgroups that are frozen: threads that a function has left behind take no processor between
//! its calls, and see nothing of it but the time.

use super::Inner;
use super::requests::{RequestClass, agent};
use crate::scheduler::nodes::NodesError;

impl Inner {
    /// Has an instance stand still that has nothing to do.
    pub async fn freeze(&self, id: u64) -> Result<(), NodesError> {
        let (node, pid) = self.table.freeze(id).ok_or_else(|| {
            failed("freeze", "it has something to do, pauses already, or has ended")
        })?;
        // Where nobody answers, it may stand still all the same.
        self.tell(&node, pid, true).await
    }

    /// Has one that stands still go on.
    pub async fn thaw(&self, id: u64) -> Result<(), NodesError> {
        let (node, pid) = self.table.place(id).ok_or_else(|| failed("thaw", "it has ended"))?;
        self.tell(&node, pid, false).await?;
        self.table.thawed(id);
        Ok(())
    }

    async fn tell(&self, node: &str, pid: i32, is_to_freeze: bool) -> Result<(), NodesError> {
        let name = node.to_owned();
        let tell = move || agent(&name, RequestClass::Look)?.pause(pid, is_to_freeze);
        let doing = if is_to_freeze { "freeze" } else { "thaw" };
        self.request(node, tell).await.map_err(|error| failed(doing, &error.to_string()))
    }
}

fn failed(doing: &'static str, reason: &str) -> NodesError {
    NodesError::Freezer { doing, reason: reason.to_owned() }
}
