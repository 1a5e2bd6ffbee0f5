//! The event stream of a viewer (Server-Sent Events).
//!
//! ```text
//!  hello      [decision, …]   once: the last decisions, the oldest first
//!  snapshot   {…}             at once, and every second
//!  decisions  [decision, …]   as they are made
//!  missed     N               number of decisions that were made too fast to be sent
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::Event;
use futures_util::stream::{Stream, unfold};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use super::Dashboard;
use crate::scheduler::decisions::{Published, Subscription};

/// Period of snapshots.
const PERIOD: Duration = Duration::from_secs(1);
/// Decisions within this time are sent together: there may be a thousand per second.
const GATHERED: Duration = Duration::from_millis(100);
/// Most decisions in one event.
const MOST_GATHERED: usize = 64;
/// After this time a browser reconnects.
const RECONNECT: Duration = Duration::from_secs(1);

/// A connected viewer.
#[derive(Debug)]
pub struct Viewer {
    dashboard: Arc<Dashboard>,
    _seat: OwnedSemaphorePermit,
    /// Past decisions, until they are sent.
    past: Option<Vec<Arc<Published>>>,
    upcoming: Receiver<Arc<Published>>,
    /// Number of lost decisions that was not sent yet.
    missed: u64,
    /// Until then no decisions are sent.
    quiet: Instant,
    ticks: Interval,
    is_over: watch::Receiver<bool>,
}

/// What to send next.
enum Next {
    Snapshot,
    Decisions(Result<Arc<Published>, RecvError>),
    End,
}

impl Viewer {
    /// A viewer with a seat.
    pub fn new(dashboard: Arc<Dashboard>, seat: OwnedSemaphorePermit) -> Viewer {
        let Subscription { past, upcoming } = dashboard.watched.subscribe();
        let mut ticks = interval(PERIOD);
        // A slow viewer does not get missed snapshots later.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let is_over = dashboard.is_over.subscribe();
        let (past, quiet) = (Some(past), Instant::now());
        Viewer { dashboard, _seat: seat, past, upcoming, missed: 0, quiet, ticks, is_over }
    }

    /// The events until the viewer disconnects or the platform ends. Each is made only when it can
    /// be sent.
    pub fn stream(self) -> impl Stream<Item = Result<Event, Infallible>> + Send {
        unfold(self, |mut viewer| async move {
            let event = viewer.event().await?;
            Some((Ok(event), viewer))
        })
    }

    async fn event(&mut self) -> Option<Event> {
        if let Some(past) = self.past.take() {
            return Some(event("hello", &past).retry(RECONNECT));
        }
        loop {
            if self.missed > 0 {
                let missed = std::mem::take(&mut self.missed);
                return Some(Event::default().event("missed").data(missed.to_string()));
            }
            match self.next().await {
                Next::Snapshot => {
                    // This fails only when the platform is shutting down.
                    let text = self.dashboard.shared_snapshot().await.ok()?;
                    return Some(Event::default().event("snapshot").data(text));
                }
                Next::Decisions(Ok(first)) => return Some(event("decisions", &self.gather(first))),
                Next::Decisions(Err(RecvError::Lagged(missed))) => self.missed = missed,
                Next::Decisions(Err(RecvError::Closed)) | Next::End => return None,
            }
        }
    }

    /// `first` and the decisions that were made meanwhile.
    fn gather(&mut self, first: Arc<Published>) -> Vec<Arc<Published>> {
        self.quiet = Instant::now() + GATHERED;
        let mut all = vec![first];
        while all.len() < MOST_GATHERED {
            match self.upcoming.try_recv() {
                Ok(another) => all.push(another),
                Err(TryRecvError::Lagged(missed)) => {
                    self.missed = missed;
                    break;
                }
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        all
    }

    async fn next(&mut self) -> Next {
        let Viewer { upcoming, quiet, ticks, is_over, .. } = self;
        let decision = async {
            sleep_until(*quiet).await;
            upcoming.recv().await
        };
        tokio::select! {
            biased;
            _ = is_over.wait_for(|is_over| *is_over) => Next::End,
            _ = ticks.tick() => Next::Snapshot,
            decision = decision => Next::Decisions(decision),
        }
    }
}

fn event(kind: &str, decisions: &[Arc<Published>]) -> Event {
    let decisions: Vec<&Published> = decisions.iter().map(|decision| &**decision).collect();
    // Texts, numbers and lists always serialise, to one line.
    Event::default().event(kind).data(serde_json::to_string(&decisions).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use axum::extract::State;
    use axum::response::Response;
    use farfork_policy::journal::Record;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::api::ApiError;
    use crate::dashboard::{MOST_VIEWERS, events};
    use crate::scheduler::Observable;
    use crate::scheduler::decisions::Decisions;
    use crate::scheduler::snapshot::Snapshot;

    /// An observable that counts its snapshots.
    #[derive(Debug, Default)]
    struct Scene {
        looks: AtomicU64,
        decided: AtomicU64,
        decisions: Decisions,
    }

    impl Scene {
        fn decide(&self, count: usize) {
            for _ in 0..count {
                self.decisions.publish(&Record {
                    number: self.decided.fetch_add(1, Ordering::Relaxed),
                    at_ms: 1,
                    about: "g/<b>".to_owned(),
                    question: "checkpoint".to_owned(),
                    facts: Value::Null,
                    choice: true.into(),
                    why: "a\nline".to_owned(),
                });
            }
        }

        fn looks(&self) -> u64 {
            self.looks.load(Ordering::Relaxed)
        }
    }

    impl Observable for Scene {
        fn snapshot(&self) -> Snapshot {
            let at_ms = 1 + self.looks.fetch_add(1, Ordering::Relaxed);
            Snapshot { at_ms, ..Snapshot::default() }
        }

        fn subscribe(&self) -> Subscription {
            self.decisions.subscribe()
        }
    }

    fn scene() -> (Arc<Scene>, Arc<Dashboard>) {
        let scene = Arc::<Scene>::default();
        (Arc::clone(&scene), Dashboard::new(scene))
    }

    async fn looked(dashboard: &Arc<Dashboard>) -> Result<Response, ApiError> {
        events(State(Arc::clone(dashboard))).await
    }

    /// Kind and data of the next event; `None` at the end, or if none comes for long.
    async fn next(response: &mut Response) -> Option<(String, Value)> {
        let frame = timeout(Duration::from_secs(5), response.body_mut().frame()).await.ok()??;
        let text = String::from_utf8(frame.unwrap().into_data().unwrap().into()).unwrap();
        let line = |key: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
            found.unwrap_or_else(|| panic!("no {key} in {text}"))
        };
        assert!(text.ends_with("\n\n"), "{text}");
        Some((line("event: "), serde_json::from_str(&line("data: ")).unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_viewer_gets_past_decisions_snapshots_and_new_decisions() {
        let (scene, dashboard) = scene();
        scene.decide(2);
        let mut one = looked(&dashboard).await.unwrap();
        let (kind, past) = next(&mut one).await.unwrap();
        assert_eq!((kind.as_str(), past[1]["number"].clone()), ("hello", json!(1)));
        assert_eq!((&past[0]["about"], &past[0]["why"]), (&json!("g/<b>"), &json!("a\nline")));
        for look in 1..=3 {
            let (kind, data) = next(&mut one).await.unwrap();
            assert_eq!((kind.as_str(), data["at_ms"].clone()), ("snapshot", json!(look)));
        }
        scene.decide(3);
        let (kind, data) = next(&mut one).await.unwrap();
        assert_eq!((kind.as_str(), data.as_array().unwrap().len()), ("decisions", 3));
        assert_eq!(data[2]["number"], 4);
        assert_eq!(next(&mut one).await.unwrap().0, "snapshot");
    }

    #[tokio::test(start_paused = true)]
    async fn many_decisions_are_sent_together_and_lost_ones_are_counted() {
        let (scene, dashboard) = scene();
        let mut one = looked(&dashboard).await.unwrap();
        for expected in ["hello", "snapshot"] {
            assert_eq!(next(&mut one).await.unwrap().0, expected);
        }
        let (mut sent, mut missed, mut events) = (0, 0, 0);
        scene.decide(1000);
        while sent + missed < 1000 {
            match next(&mut one).await.unwrap() {
                (kind, all) if kind == "decisions" => sent += all.as_array().unwrap().len() as u64,
                (kind, number) if kind == "missed" => missed += number.as_u64().unwrap(),
                (kind, _) => assert_eq!(kind, "snapshot"),
            }
            events += 1;
        }
        assert_eq!((sent, missed), (256, 744));
        assert!(events < 20, "{events}");
    }

    #[tokio::test(start_paused = true)]
    async fn snapshots_are_taken_on_demand_and_shared() {
        let (scene, dashboard) = scene();
        advance(Duration::from_secs(60)).await;
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(looked(&dashboard).await.unwrap());
        }
        for one in &mut all {
            next(one).await.unwrap();
        }
        assert_eq!(scene.looks(), 0);
        for round in 1..=4 {
            for one in &mut all {
                let (_, data) = next(one).await.unwrap();
                assert_eq!(data["at_ms"], round);
            }
        }
        assert_eq!(scene.looks(), 4);
        // A viewer that reads nothing causes no snapshots, and gets one afterwards, not sixty.
        advance(Duration::from_secs(60)).await;
        assert_eq!(scene.looks(), 4);
        assert_eq!(next(&mut all[0]).await.unwrap().1["at_ms"], 5);
        assert!(timeout(Duration::from_millis(900), all[0].body_mut().frame()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn seats_are_limited_and_given_back() {
        let (_, dashboard) = scene();
        let mut all = Vec::new();
        for _ in 0..MOST_VIEWERS {
            all.push(looked(&dashboard).await.unwrap());
        }
        let refused = looked(&dashboard).await.unwrap_err();
        assert_eq!(refused.status(), 429);
        assert!(refused.to_string().contains("the dashboard has 16 viewers already"), "{refused}");
        all.pop();
        assert!(looked(&dashboard).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn viewers_do_not_keep_the_platform_from_ending() {
        let (_, dashboard) = scene();
        let mut one = looked(&dashboard).await.unwrap();
        next(&mut one).await.unwrap();
        next(&mut one).await.unwrap();
        dashboard.end();
        assert_eq!(next(&mut one).await, None);
        // A viewer that connects late is ended, too.
        let mut late = looked(&dashboard).await.unwrap();
        next(&mut late).await.unwrap();
        assert_eq!(next(&mut late).await, None);
    }
}
