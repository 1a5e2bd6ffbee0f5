//! The table of nodes and functions that `farfork top` shows.

use farfork_platform::api::StartKind;
use farfork_platform::scheduler::snapshot::{Function, Instances, Node, Recent, Snapshot};

use crate::size;

/// The lines of the table.
pub(crate) fn lines(seen: &Snapshot) -> Vec<String> {
    let Recent { per_s, p50_ms, p99_ms, .. } = seen.recent;
    let mut lines = vec![
        format!(
            "{} calls in flight, {} of them waiting; recently {per_s:.1} calls/s, P50 {}, P99 {}",
            seen.calls_in_flight,
            seen.calls_waiting,
            time(p50_ms),
            time(p99_ms)
        ),
        format!(
            "pool {} of {}, {} images",
            size::show(seen.pool_used_bytes),
            size::show(seen.pool_size_bytes),
            seen.pool_images
        ),
        String::new(),
        format!(
            "{:<12} {:<5} {:>5} {:>5} {:>6} {:>6} {:>21} {:>10} {:>10}",
            "NODE", "STATE", "IDLE", "BUSY", "START", "GHOST", "MEMORY OF BUDGET", "LOCAL", "POOL"
        ),
    ];
    lines.extend(seen.nodes.iter().map(|(name, node)| node_line(name, node)));
    lines.push(String::new());
    lines.push(format!(
        "{:<28} {:>5} {:>5} {:>10} {:>10} {:>8} {:>7} {:>6} {:>6} {:>6} {:>9} {:>9}",
        "FUNCTION",
        "IDLE",
        "BUSY",
        "LOCAL",
        "POOL",
        "CALLS",
        "/S",
        "FAILED",
        "COLD",
        "CLONE",
        "MEAN",
        "P99"
    ));
    lines.extend(seen.functions.iter().map(|(name, function)| function_line(name, function)));
    lines
}

fn node_line(name: &str, node: &Node) -> String {
    let Instances { idle, busy, local_bytes, pool_bytes } = node.instances;
    format!(
        "{name:<12} {:<5} {idle:>5} {busy:>5} {:>6} {:>6} {:>21} {:>10} {:>10}",
        if node.is_up { "up" } else { "down" },
        node.starting,
        node.ghosts + node.attached_ghosts,
        format!("{} of {}", size::show(node.memory_bytes), size::show(node.budget_bytes)),
        size::show(local_bytes),
        size::show(pool_bytes),
    )
}

fn function_line(name: &str, function: &Function) -> String {
    let Instances { idle, busy, local_bytes, pool_bytes } = function.instances;
    let starts = |start: StartKind| function.starts.get(&start).copied().unwrap_or(0);
    format!(
        "{name:<28} {idle:>5} {busy:>5} {:>10} {:>10} {:>8} {:>7.1} {:>6} {:>6} {:>6} {:>9} {:>9}",
        size::show(local_bytes),
        size::show(pool_bytes),
        function.calls,
        function.recent.per_s,
        function.failed,
        starts(StartKind::Cold),
        starts(StartKind::Clone) + starts(StartKind::Ghost),
        time(function.duration_ms),
        time(function.recent.p99_ms),
    )
}

fn time(ms: Option<f64>) -> String {
    ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(lines: &[String], name: &str) -> String {
        let line = lines.iter().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn nodes_and_functions_have_a_line_each() {
        let instances = Instances { idle: 6, busy: 2, local_bytes: 10, pool_bytes: 2048 };
        let node = Node {
            ghosts: 2,
            attached_ghosts: 1,
            starting: 4,
            memory_bytes: 1 << 20,
            budget_bytes: 4 << 20,
            ..Node::default()
        };
        let up = Node { is_up: true, instances, ..node.clone() };
        let function = Function {
            calls: 10,
            failed: 2,
            starts: [(StartKind::Cold, 1), (StartKind::Clone, 3), (StartKind::Ghost, 4)].into(),
            duration_ms: Some(50.0),
            recent: Recent { per_s: 0.34, p99_ms: Some(71.25), ..Recent::default() },
            instances,
            ..Function::default()
        };
        let seen = Snapshot {
            nodes: [("n1".to_owned(), up), ("n2".to_owned(), node)].into(),
            functions: [("g/a".to_owned(), function), ("g/b".to_owned(), Function::default())]
                .into(),
            ..Snapshot::default()
        };
        let lines = lines(&seen);
        assert_eq!(words(&lines, "n1"), "n1 up 6 2 4 3 1.0 MiB of 4.0 MiB 10 B 2.0 KiB");
        assert_eq!(words(&lines, "n2"), "n2 down 0 0 4 3 1.0 MiB of 4.0 MiB 0 B 0 B");
        assert_eq!(words(&lines, "g/a"), "g/a 6 2 10 B 2.0 KiB 10 0.3 2 1 7 50.0 ms 71.2 ms");
        assert_eq!(words(&lines, "g/b"), "g/b 0 0 0 B 0 B 0 0.0 0 0 0 - -");
    }
}
