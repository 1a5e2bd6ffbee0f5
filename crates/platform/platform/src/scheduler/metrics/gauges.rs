//! Gauges of instances, nodes and the pool.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::{gauge, signed};
use crate::api::Name;
use crate::scheduler::fleet::SharedFleet;
use crate::scheduler::nodes::{NodeState, Nodes};
use crate::scheduler::snapshot::{Instances, Node, Snapshot};

/// Reads the gauges.
#[derive(Clone, Debug)]
pub struct Gauges {
    /// Nodes and pool.
    pub nodes: Arc<dyn Nodes>,
    /// Instances.
    pub fleet: Arc<SharedFleet>,
}

/// The instances of a function on a node, by namespace, action and node.
type Groups = BTreeMap<(Name, Name, String), Instances>;
type NodeGauge = (&'static str, &'static str, Option<Unit>, fn(&NodeState) -> u64);
type GroupGauge = (&'static str, fn(&Instances) -> u64);

const NODE_GAUGES: [NodeGauge; 8] = [
    ("farfork_node_up", "Whether a node answers.", None, |node| u64::from(node.answers)),
    ("farfork_node_ghosts", "Empty ghosts waiting.", None, |node| node.ghosts),
    (
        "farfork_node_attached_ghosts",
        "Ghosts waiting with a function's image attached.",
        None,
        |node| node.attached_ghosts,
    ),
    ("farfork_node_instances_starting", "Instances being started.", None, |node| node.starting),
    ("farfork_node_instances_paused", "Instances paused until memory is free.", None, |node| {
        node.paused
    }),
    (
        "farfork_node_memory",
        "Memory that a node's instances hold or are promised.",
        Some(Unit::Bytes),
        |node| node.memory.used_bytes,
    ),
    (
        "farfork_node_memory_budget",
        "Memory that a node's instances may take together.",
        Some(Unit::Bytes),
        |node| node.memory.budget_bytes,
    ),
    (
        "farfork_node_pool_read_bytes_per_second",
        "Rate at which one processor of a node reads from the pool, without caches; 0 if not measured.",
        None,
        |node| node.pool_read_bytes_per_s.unwrap_or(0),
    ),
];
const STATES: [GroupGauge; 2] = [("idle", |group| group.idle), ("busy", |group| group.busy)];
const TIERS: [GroupGauge; 2] =
    [("local", |group| group.local_bytes), ("pool", |group| group.pool_bytes)];

impl Gauges {
    fn groups(&self) -> Groups {
        let mut groups = Groups::new();
        for instance in self.fleet.instances() {
            let (namespace, action) = instance.function;
            let group = groups.entry((namespace, action, instance.node)).or_default();
            match instance.is_idle {
                true => group.idle += 1,
                false => group.busy += 1,
            }
            let usage = self.nodes.usage(instance.id).unwrap_or_default();
            group.local_bytes += usage.local_bytes;
            group.pool_bytes += usage.pool_bytes;
        }
        groups
    }

    /// Adds the gauges to a snapshot.
    pub fn look(&self, snapshot: &mut Snapshot) {
        let pool = self.nodes.pool();
        (snapshot.pool_used_bytes, snapshot.pool_size_bytes) = (pool.used_bytes, pool.budget_bytes);
        snapshot.pool_images = self.nodes.images();
        for state in self.nodes.survey() {
            let node = Node {
                is_up: state.answers,
                ghosts: state.ghosts,
                attached_ghosts: state.attached_ghosts,
                starting: state.starting,
                memory_bytes: state.memory.used_bytes,
                budget_bytes: state.memory.budget_bytes,
                instances: Instances::default(),
            };
            snapshot.nodes.insert(state.name, node);
        }
        for ((namespace, action, node), group) in self.groups() {
            if let Some(node) = snapshot.nodes.get_mut(&node) {
                node.instances.add(group);
            }
            // A deleted function may still have instances.
            if let Some(function) = snapshot.functions.get_mut(&format!("{namespace}/{action}")) {
                function.instances.add(group);
                function.nodes.entry(node).or_default().add(group);
            }
        }
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let nodes = self.nodes.survey();
        for (name, help, unit, value) in NODE_GAUGES {
            let mut family = gauge(&mut encoder, (name, help), unit.as_ref())?;
            for node in &nodes {
                let labels = [("node", node.name.as_str())];
                family.encode_family(&labels)?.encode_gauge(&signed(value(node)))?;
            }
        }
        let groups = self.groups();
        let about = ("farfork_instances", "Instances that have started.");
        by_group(&mut encoder, &groups, about, None, ("state", STATES))?;
        let help = "Memory of instances: local, and mapped from the pool.";
        let about = ("farfork_instance_memory", help);
        by_group(&mut encoder, &groups, about, Some(&Unit::Bytes), ("tier", TIERS))?;
        let pool = self.nodes.pool();
        let used = ("farfork_pool_used", "Space of the pool in use.");
        gauge(&mut encoder, used, Some(&Unit::Bytes))?.encode_gauge(&signed(pool.used_bytes))?;
        let size = ("farfork_pool_size", "Size of the pool.");
        gauge(&mut encoder, size, Some(&Unit::Bytes))?.encode_gauge(&signed(pool.budget_bytes))
    }
}

fn by_group(
    encoder: &mut DescriptorEncoder<'_>,
    groups: &Groups,
    about: (&str, &str),
    unit: Option<&Unit>,
    (key, parts): (&'static str, [GroupGauge; 2]),
) -> fmt::Result {
    if groups.is_empty() {
        return Ok(());
    }
    let mut family = gauge(encoder, about, unit)?;
    for ((namespace, action, node), group) in groups {
        for (part, of) in parts {
            let labels = [
                ("namespace", namespace.as_str()),
                ("action", action.as_str()),
                ("node", node.as_str()),
                (key, part),
            ];
            family.encode_family(&labels)?.encode_gauge(&signed(of(group)))?;
        }
    }
    Ok(())
}
