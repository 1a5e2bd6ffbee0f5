//! Requests to agents, all with time limits: an agent may hang or be stopped.
//!
//! A request waits on a blocking thread, at most as long as its class allows, and no longer than
//! until its node is seen not to answer.

use std::time::Duration;

use farfork_node::NodeError;
use farfork_node::client::Client;
use farfork_types::wire::DEFAULT_TIMEOUT_S;

use super::{Inner, blocking};

/// The classes of requests.
#[derive(Clone, Copy, Debug)]
pub enum RequestClass {
    /// To list what exists, or to freeze or thaw a clone: quick.
    Look,
    /// To make or end a container.
    Container,
    /// To start a clone.
    Start,
    /// To promote a clone.
    Promote,
}

impl RequestClass {
    /// The time limit.
    pub const fn limit(self) -> Duration {
        Duration::from_secs(match self {
            // Long, for machines that are busy or short of memory: a node that is given up loses
            // its ghosts.
            RequestClass::Look => 15,
            RequestClass::Container => 30,
            // The agent has a limit itself, and ends a clone that takes longer.
            RequestClass::Start => DEFAULT_TIMEOUT_S + 5,
            RequestClass::Promote => 60,
        })
    }
}

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The node does not answer any request.
    #[error("its agent does not answer")]
    Lost,
    /// The platform is shutting down.
    #[error("the platform is shutting down")]
    Over,
    /// The agent refuses, has exited, or timed out.
    #[error(transparent)]
    Agent(#[from] NodeError),
}

/// Connects to the agent of a node, for one request.
pub fn connect(node: &str, class: RequestClass) -> Result<Client, NodeError> {
    Client::connect_within(node, class.limit())
}

impl Inner {
    /// Sends a request to the agent of a node from a blocking thread. If the node is seen not to
    /// answer meanwhile, the result is dropped, even if the agent handles the request later.
    pub async fn request<T: Send + 'static>(
        &self,
        node: &str,
        request: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
    ) -> Result<T, RequestError> {
        if !self.ledger.answers(node) {
            return Err(RequestError::Lost);
        }
        tokio::select! {
            biased;
            result = blocking(request) => Ok(result.ok_or(RequestError::Over)??),
            () = self.ledger.until_lost(node) => Err(RequestError::Lost),
        }
    }
}
