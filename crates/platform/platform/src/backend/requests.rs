//! Asking agents, none of which is waited for without end: one may hang, or have been stopped.
//!
//! Whoever asks waits on a thread that holds nobody else up, for so long as the agent may take for what it is
//! asked, and no longer than until its node is seen not to answer.

use std::time::Duration;

use farfork_node::NodeError;
use farfork_node::client::Client;
use farfork_types::wire::DEFAULT_TIMEOUT_S;

use super::{Inner, blocking};

/// What an agent is asked.
#[derive(Clone, Copy, Debug)]
pub enum RequestClass {
    /// To tell what there is, or to have a clone pause: nothing that takes time.
    Look,
    /// To make or to end a container.
    Container,
    /// To start a clone.
    Start,
    /// To make pages of a clone local.
    Promote,
}

impl RequestClass {
    /// How long an agent may take for it.
    pub const fn limit(self) -> Duration {
        Duration::from_secs(match self {
            // Much for a machine that is busy or short of memory: a node that is given up loses its ghosts.
            RequestClass::Look => 15,
            RequestClass::Container => 30,
            // The agent itself ends one that takes longer than it may.
            RequestClass::Start => DEFAULT_TIMEOUT_S + 5,
            RequestClass::Promote => 60,
        })
    }
}

/// There is no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The node does not answer any more, whatever it is asked.
    #[error("its agent does not answer")]
    Lost,
    /// The platform ends.
    #[error("the platform ends")]
    Over,
    /// The agent says no, is gone, or takes too long for this.
    #[error(transparent)]
    Agent(#[from] NodeError),
}

/// Reaches the agent of a node, to ask it one thing.
pub fn agent(node: &str, class: RequestClass) -> Result<Client, NodeError> {
    Client::connect_within(node, class.limit())
}

impl Inner {
    /// Asks the agent of a node for what takes time. What comes of it is dropped if the node is seen not to
    /// answer meanwhile, however the agent goes on about it later.
    pub async fn request<T: Send + 'static>(
        &self,
        node: &str,
        ask: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
    ) -> Result<T, RequestError> {
        if !self.table.answers(node) {
            return Err(RequestError::Lost);
        }
        tokio::select! {
            biased;
            asked = blocking(ask) => Ok(asked.ok_or(RequestError::Over)??),
            () = self.table.until_lost(node) => Err(RequestError::Lost),
        }
    }
}
