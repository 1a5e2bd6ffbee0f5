//! Encodes the metrics of functions.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Unit;

use super::{Figures, FunctionKey, Functions, OUTCOMES, STARTS};
use crate::api::Outcome;
use crate::scheduler::metrics::{signed, word};

impl Functions {
    /// Writes all metrics.
    pub fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.list();
        if all.is_empty() {
            return Ok(());
        }
        calls(&mut encoder, &all)?;
        each(&mut encoder, &all, COLD_STARTS, None, |figures| &figures.cold_starts)?;
        each(&mut encoder, &all, MEMORY, None, |figures| &figures.memory_mb)?;
        for (name, help, histogram) in TIMES {
            each(&mut encoder, &all, (name, help), Some(&Unit::Seconds), histogram)?;
        }
        each(&mut encoder, &all, SIZES, Some(&Unit::Bytes), |figures| &figures.sizes)?;
        outcomes(&mut encoder, &all)?;
        starts(&mut encoder, &all)
    }
}

const COLD_STARTS: (&str, &str) =
    ("openwhisk_action_coldStarts", "Calls that had to load the code.");
const MEMORY: (&str, &str) =
    ("openwhisk_action_memory", "Memory limit of an instance, in megabytes.");

const SIZES: (&str, &str) = ("openwhisk_action_response_size", "Size of calls' results.");

type TimesMetric = (&'static str, &'static str, fn(&Figures) -> &Histogram);

const TIMES: [TimesMetric; 3] = [
    ("openwhisk_action_waitTime", "Time from the request until the action began.", |all| {
        &all.waits
    }),
    ("openwhisk_action_initTime", "Time to load the code.", |all| &all.inits),
    ("openwhisk_action_duration", "Duration of the action, including loading the code.", |all| {
        &all.durations
    }),
];

type All = [(FunctionKey, Arc<Figures>)];

/// OpenWhisk's labels of a function. The initiator is the owner, as farfork does not track callers.
fn labels((namespace, action): &FunctionKey) -> [(&'static str, &str); 3] {
    let namespace = namespace.as_str();
    [("namespace", namespace), ("initiator", namespace), ("action", action.as_str())]
}

fn each<M: EncodeMetric + TypedMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    all: &All,
    (name, help): (&str, &str),
    unit: Option<&Unit>,
    metric: fn(&Figures) -> &M,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, unit, M::TYPE)?;
    all.iter()
        .try_for_each(|(key, figures)| metric(figures).encode(family.encode_family(&labels(key))?))
}

fn calls(encoder: &mut DescriptorEncoder<'_>, all: &All) -> fmt::Result {
    let (name, help) = ("openwhisk_action_activations", "Calls that have ended.");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (key, figures) in all {
        for ((kind, memory_mb), counter) in &*figures.shapes() {
            let memory_mb = memory_mb.to_string();
            let [namespace, initiator, action] = labels(key);
            let labels = [
                namespace,
                initiator,
                action,
                ("kind", kind.as_str()),
                ("memory", memory_mb.as_str()),
            ];
            counter.encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn outcomes(encoder: &mut DescriptorEncoder<'_>, all: &All) -> fmt::Result {
    // OpenWhisk's name lacks the suffix that OpenMetrics requires of counters.
    let (name, help) = ("openwhisk_action_status", "Calls by outcome, a counter.");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Unknown)?;
    for (key, figures) in all {
        for (outcome, counter) in OUTCOMES.into_iter().zip(&figures.outcomes) {
            let [namespace, initiator, action] = labels(key);
            let labels = [namespace, initiator, action, ("status", status(outcome))];
            family.encode_family(&labels)?.encode_gauge(&signed(counter.get()))?;
        }
    }
    Ok(())
}

fn starts(encoder: &mut DescriptorEncoder<'_>, all: &All) -> fmt::Result {
    let (name, help) = ("farfork_action_starts", "Calls by how they got their instance.");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (key, figures) in all {
        for (start, counter) in STARTS.into_iter().zip(&figures.starts) {
            let [namespace, _, action] = labels(key);
            let labels = [namespace, action, ("start", word(start))];
            counter.encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// OpenWhisk's label of an outcome.
fn status(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::ApplicationError => "application_error",
        Outcome::DeveloperError => "action_developer_error",
        Outcome::InternalError => "whisk_internal_error",
    }
}
