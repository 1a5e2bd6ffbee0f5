//! Metrics of a page server, in the text format of OpenMetrics 1.0 over HTTP.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use farfork_pageserver::{Counters, Event};
use farfork_sys::words;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Upper bounds, in seconds: a replay of the working set takes milliseconds to a few hundred, a take-over a few.
const SECONDS: [f64; 11] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct How {
    end: &'static str,
}

/// Counts what happens to machines.
pub(super) struct Metrics {
    machines: Gauge,
    started: Counter,
    ended: Family<How, Counter>,
    refused: Counter,
    faults: Counter,
    deferred: Counter,
    pages: Family<Kind, Counter>,
    hot: Gauge,
    forgotten: Counter,
    filled: Histogram,
    replaced: Histogram,
}

impl Metrics {
    /// All of them as zero, and what shows them.
    fn new() -> (Metrics, Registry) {
        let seconds = || Histogram::new(SECONDS);
        let metrics = Metrics {
            machines: Gauge::default(),
            started: Counter::default(),
            ended: Family::default(),
            refused: Counter::default(),
            faults: Counter::default(),
            deferred: Counter::default(),
            pages: Family::default(),
            hot: Gauge::default(),
            forgotten: Counter::default(),
            filled: seconds(),
            replaced: seconds(),
        };
        let mut registry = Registry::with_prefix("farfork_vm");
        let Metrics {
            machines,
            started,
            ended,
            refused,
            faults,
            deferred,
            pages,
            hot,
            forgotten,
            filled,
            replaced,
        } = &metrics;
        registry.register("machines", "Machines that are served", machines.clone());
        registry.register("machines_started", "Machines that were handed over", started.clone());
        let help = "Machines that are served no more, by how they ended: by themselves, killed by the holder's second \
            signal, or failed, because no server could serve them";
        registry.register("machines_ended", help, ended.clone());
        registry.register("machines_refused", "Bad hand-overs of monitors", refused.clone());
        let help = "Faults that were answered for machines that have ended";
        registry.register("faults", help, faults.clone());
        let help = "Answers for machines that have ended that waited for their monitors' mappings";
        registry.register("answers_deferred", help, deferred.clone());
        let help = "Pages of machines that have ended: copied or zero, of which replayed or ahead of a fault; removed by \
            the monitor; poisoned because they could not be read";
        registry.register("pages", help, pages.clone());
        let help = "Pages that machines get before they ask, since the record has changed last";
        registry.register("hot_pages", help, hot.clone());
        let help = "Pages that were hot until machines did not need them any more";
        registry.register("forgotten_pages", help, forgotten.clone());
        let help = "Time from the hand-over of a machine until the pages that earlier ones needed were there";
        registry.register_with_unit("fill", help, Unit::Seconds, filled.clone());
        let help = "Time from the death of a server until the next had all machines";
        registry.register_with_unit("takeover", help, Unit::Seconds, replaced.clone());
        (metrics, registry)
    }

    /// Serves new metrics at `address`, from a thread that lasts as long as the process. Returns the bound
    /// address, too.
    pub(super) fn serve(address: SocketAddr) -> Result<(Metrics, SocketAddr), Box<dyn Error>> {
        let failed = |error: io::Error| {
            let why = words::of(&error);
            format!("cannot serve metrics at {address}: {why}; choose another address")
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let (metrics, registry) = Metrics::new();
        let accepting = accept(listener, Arc::new(registry));
        let body = move || {
            if let Err(error) = runtime.block_on(accepting) {
                eprintln!("farfork: metrics are not served any more: {}", words::of(&error));
            }
        };
        thread::Builder::new().name("metrics".to_owned()).spawn(body).map_err(failed)?;
        Ok((metrics, bound))
    }

    /// Counts an event.
    pub(super) fn note(&self, event: &Event) {
        let end = |end| {
            self.ended.get_or_create(&How { end }).inc();
            self.machines.dec();
        };
        match event {
            Event::Started { .. } => {
                self.started.inc();
                self.machines.inc();
            }
            Event::Filled { took, .. } => self.filled.observe(took.as_secs_f64()),
            Event::Ended { counters, .. } => {
                self.add(counters);
                end("itself");
            }
            Event::Failed { .. } => end("failed"),
            Event::Killed { .. } => end("killed"),
            Event::Refused { .. } => drop(self.refused.inc()),
            Event::Replaced { took, .. } => self.replaced.observe(took.as_secs_f64()),
            Event::Adapted { pages, forgotten } => {
                self.hot.set(*pages as i64);
                self.forgotten.inc_by(*forgotten);
            }
            Event::Listening { .. } | Event::Stopping { .. } => {}
        }
    }

    fn add(&self, counters: &Counters) {
        let Counters { faults, deferred, copied_pages, zero_pages, .. } = *counters;
        let Counters { ahead_pages, hot_pages, removed_pages, poisoned_pages, .. } = *counters;
        self.faults.inc_by(faults);
        self.deferred.inc_by(deferred);
        let pages = [
            ("copied", copied_pages),
            ("zero", zero_pages),
            ("ahead", ahead_pages),
            ("replayed", hot_pages),
            ("removed", removed_pages),
            ("poisoned", poisoned_pages),
        ];
        for (kind, pages) in pages {
            self.pages.get_or_create(&Kind { kind }).inc_by(pages);
        }
    }
}

async fn accept(listener: TcpListener, registry: Arc<Registry>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        // An error belongs to one connection, or there are too many descriptors for a while.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let registry = Arc::clone(&registry);
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = answer(&request, &registry);
            async move { Ok::<_, Infallible>(answer) }
        });
        tokio::spawn(async move {
            // A client may go away at any moment.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn answer(request: &Request<Incoming>, registry: &Registry) -> Response<Full<Bytes>> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            let mut text = String::new();
            // Writing to a string does not fail.
            let _ = encode(&mut text, registry);
            (StatusCode::OK, text)
        }
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, String::new()),
        _ => (StatusCode::NOT_FOUND, "metrics are at /metrics\n".to_owned()),
    };
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(CONTENT_TYPE));
    answer
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn events_are_counted() {
        let (metrics, registry) = Metrics::new();
        let (pid, machine) = (None, 1);
        let counters =
            Counters { faults: 5, copied_pages: 40, hot_pages: 30, ..Counters::default() };
        metrics.note(&Event::Started { machine, pid, bytes: 1 << 20 });
        metrics.note(&Event::Started { machine: 2, pid, bytes: 1 << 20 });
        metrics.note(&Event::Started { machine: 3, pid, bytes: 1 << 20 });
        metrics.note(&Event::Filled { machine, pid, pages: 30, took: Duration::from_millis(3) });
        metrics.note(&Event::Ended { machine, pid, counters });
        metrics.note(&Event::Adapted { pages: 700, forgotten: 30 });
        metrics.note(&Event::Killed { machine: 2, pid, is_killed: true });
        let took = Duration::from_millis(40);
        metrics.note(&Event::Replaced { status: None, machines: 1, took });
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "farfork_vm_machines 1",
            "farfork_vm_machines_started_total 3",
            "farfork_vm_machines_ended_total{end=\"itself\"} 1",
            "farfork_vm_machines_ended_total{end=\"killed\"} 1",
            "farfork_vm_faults_total 5",
            "farfork_vm_hot_pages 700",
            "farfork_vm_forgotten_pages_total 30",
            "farfork_vm_pages_total{kind=\"copied\"} 40",
            "farfork_vm_pages_total{kind=\"replayed\"} 30",
            "farfork_vm_fill_seconds_bucket{le=\"0.002\"} 0",
            "farfork_vm_fill_seconds_bucket{le=\"0.005\"} 1",
            "farfork_vm_takeover_seconds_sum 0.04",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
