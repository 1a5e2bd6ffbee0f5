//! Traces, by which calls are found in the records of other programs (W3C Trace Context).
//!
//! An activation is one span of a trace: of the caller's trace, if it has one, else of a new one.
//! Spans are not exported yet. Their ids stand in activations and in the log, and functions find
//! them in their environment (`TRACEPARENT`, `TRACESTATE`) as OpenTelemetry specifies.

use std::collections::HashMap;

use axum::http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use serde::{Deserialize, Serialize};

/// The span that an activation is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// `00-TRACE-SPAN-FLAGS`; empty if the kernel gave no random numbers.
    pub parent: String,
    /// The state of tracers, `NAME=VALUE,…`; mostly empty.
    pub state: String,
}

struct Headers<'h>(&'h HeaderMap);

/// Length of a `traceparent` of version 00.
const PARENT_BYTES: usize = 55;

impl Headers<'_> {
    /// Whether the request names exactly one parent span. The standard fixes the length of version
    /// 00, which the library does not check; later versions may be longer.
    fn have_parent(&self) -> bool {
        let mut all = self.0.get_all("traceparent").iter();
        let (one, another) = (all.next(), all.next());
        one.filter(|_| another.is_none()).is_some_and(|parent| {
            parent.len() == PARENT_BYTES
                || parent.len() > PARENT_BYTES && !parent.as_bytes().starts_with(b"00-")
        })
    }
}

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok().filter(|_| self.have_parent())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.as_str()).collect()
    }
}

impl Trace {
    /// A new span in the request's trace, or the first span of a new trace.
    pub fn from_headers(headers: &HeaderMap) -> Trace {
        let propagator = TraceContextPropagator::new();
        let asked = propagator.extract_with_context(&Context::new(), &Headers(headers));
        let asked = asked.span().span_context().clone();
        let Some((trace, span)) = ids() else { return Trace::default() };
        let own = match asked.is_valid() {
            true => (asked.trace_id(), asked.trace_flags(), asked.trace_state().clone()),
            false => (trace, TraceFlags::SAMPLED, TraceState::NONE),
        };
        let own = SpanContext::new(own.0, span, own.1, false, own.2);
        let mut fields = HashMap::<String, String>::new();
        propagator.inject_context(&Context::new().with_remote_span_context(own), &mut fields);
        let mut take = |name| fields.remove(name).unwrap_or_default();
        Trace { parent: take("traceparent"), state: take("tracestate") }
    }
}

/// Random ids of a trace and a span.
fn ids() -> Option<(TraceId, SpanId)> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).ok()?;
    let (trace, span) = bytes.split_at(16);
    // Ids of zeros are invalid.
    let (trace, span) = (u128::from_le_bytes(trace.try_into().ok()?), span.try_into().ok()?);
    Some((TraceId::from(trace | 1), SpanId::from(u64::from_le_bytes(span) | 1)))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn trace(fields: &[(&'static str, &'static str)]) -> Trace {
        let fields = fields
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        Trace::from_headers(&fields.collect())
    }

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    #[test]
    fn a_call_is_a_span_of_its_callers_trace() {
        let trace = trace(&[("traceparent", CALLER), ("tracestate", "a=1,b=2")]);
        let parts: Vec<&str> = trace.parent.split('-').collect();
        assert_eq!((parts[0], parts[1], parts[3]), ("00", TRACE, "00"), "{trace:?}");
        assert_ne!(parts[2], "00f067aa0ba902b7", "a span of its own");
        assert_eq!(parts[2].len(), 16);
        assert_eq!(trace.state, "a=1,b=2");
    }

    #[test]
    fn without_a_valid_parent_a_new_trace_begins() {
        let zeros = "00-00000000000000000000000000000000-00f067aa0ba902b7-00";
        let longer = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-000";
        let shorter = &CALLER[..CALLER.len() - 1];
        let wrong = ["", "00-xyz", zeros, &CALLER[3..], longer, shorter];
        let mut seen = vec![trace(&[]).parent];
        seen.extend(wrong.map(|parent| trace(&[("traceparent", parent)]).parent));
        seen.push(trace(&[("traceparent", CALLER), ("traceparent", CALLER)]).parent);
        for parent in &seen {
            assert_eq!((parent.len(), &parent[..3], &parent[52..]), (55, "00-", "-01"), "{parent}");
            assert!(!parent.contains(TRACE), "{parent}");
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 8, "each has its own trace");
    }
}
