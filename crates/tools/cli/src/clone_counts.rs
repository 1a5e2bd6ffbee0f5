//! How many clones of each image this machine has, as its agents answer.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Mutex;
use std::time::Duration;

use farfork_node::NodeError;
use farfork_node::client::Client;
use farfork_sys::sync::locked;
use farfork_types::Cid;

use crate::node::nodes;

/// Limit of one agent's answer. The thread that asks has other work each half second.
const LIMIT: Duration = Duration::from_millis(300);

/// What one agent has answered.
type Answer = Result<Vec<(Cid, u32)>, NodeError>;

/// The last counts by agent. An agent that does not answer in time still has its clones: its last count stays. The node of a
/// seed would otherwise cut these clones off.
#[derive(Default)]
pub(crate) struct CloneCounts(Mutex<HashMap<String, Vec<(Cid, u32)>>>);

impl CloneCounts {
    /// Asks each agent of this machine.
    pub(crate) fn now(&self) -> HashMap<Cid, u32> {
        let ask = |node: String| {
            let answer = Client::connect_within(&node, LIMIT).and_then(|client| client.count());
            (node, answer)
        };
        self.after(nodes().into_iter().map(ask))
    }

    /// The counts after these answers. Agents without one have gone.
    fn after(&self, answers: impl Iterator<Item = (String, Answer)>) -> HashMap<Cid, u32> {
        let mut last = locked(&self.0);
        let mut known = HashMap::new();
        for (node, answer) in answers {
            let counts = match answer {
                Ok(counts) => counts,
                Err(error) if is_absent(&error) => continue,
                Err(_) => last.remove(&node).unwrap_or_default(),
            };
            known.insert(node, counts);
        }
        let mut sums = HashMap::new();
        for (cid, count) in known.values().flatten() {
            *sums.entry(*cid).or_default() += count;
        }
        *last = known;
        sums
    }
}

/// Whether the socket has no agent.
fn is_absent(error: &NodeError) -> bool {
    let kinds = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
    matches!(error, NodeError::Socket { source, .. } if kinds.contains(&source.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_does_not_answer_keeps_its_last_count() {
        let [one, other] = [1, 2].map(|n| Cid::from_bytes([n; 16]));
        let late = || Err(NodeError::Late(LIMIT));
        let gone = || {
            let source = ErrorKind::ConnectionRefused.into();
            Err(NodeError::Socket { doing: "reach", path: "/x".into(), source })
        };
        let counts = CloneCounts::default();
        let after = |answers: [(&str, Answer); 2]| {
            counts.after(answers.map(|(node, answer)| (node.to_owned(), answer)).into_iter())
        };
        let both = HashMap::from([(one, 5), (other, 1)]);
        let first = after([("a", Ok(vec![(one, 2)])), ("b", Ok(vec![(one, 3), (other, 1)]))]);
        assert_eq!(first, both);
        // More than once, and also before others that answer.
        assert_eq!(after([("b", late()), ("a", Ok(vec![(one, 2)]))]), both);
        assert_eq!(after([("a", late()), ("b", late())]), both);
        assert_eq!(after([("a", Ok(Vec::new())), ("b", gone())]), HashMap::new());
        assert_eq!(after([("a", late()), ("b", late())]), HashMap::new());
    }
}
