//! Herds in ghosts: all namespaces exist before a clone is requested.

use std::time::{Duration, Instant};

use farfork_node::client::Client;
use farfork_types::Tiering;

use super::{Herd, Scale, end_asked, evenly, metric};
use crate::cases::clone::CloneOptions;
use crate::cases::{Bench, Lane};
use crate::error::BenchError;
use crate::progress;
use crate::testbed::Testbed;
use crate::tiering::starts;

/// Names of the cases, and whether ghosts are attached.
pub const CASES: [(&str, bool); 2] =
    [("herd-in-empty-ghosts", false), ("herd-in-attached-ghosts", true)];
/// Threads that create ghosts, and that start clones.
const THREADS: usize = 2;
/// Limit of the end of all containers.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a batch of clones in ghosts, again and again.
pub fn measure(lane: &Lane, bench: &mut Bench<'_>, scale: &Scale) -> Result<(), BenchError> {
    let mut herd = Herd::new(&lane.subject, bench.testbed);
    for round in 0..=scale.rounds_of_ghosts {
        for (name, has_image) in CASES {
            let count = scale.ghosts;
            progress(&format!(
                "{count} clones in ghosts, round {round} of {}",
                scale.rounds_of_ghosts
            ));
            let (us, all) = herd.batch(&made(lane, bench.testbed, has_image, count)?)?;
            let answered = all.len() as f64;
            end_asked(all, bench.testbed)?;
            await_none(lane, bench.testbed)?;
            if round > 0 {
                let case = lane.subject.case(name);
                let (each, rate) = (us / answered, answered * 1e6 / us);
                bench.samples.add(&case, metric::EACH, "us", each);
                bench.samples.add(&case, metric::RATE, "1/s", rate);
            }
        }
    }
    Ok(())
}

/// Creates ghosts. Returns the options of the clones in them, by thread.
pub fn made(
    lane: &Lane,
    testbed: &Testbed,
    has_image: bool,
    count: usize,
) -> Result<Vec<Vec<CloneOptions>>, BenchError> {
    let way = CloneOptions { is_detached: true, ..CloneOptions::new(lane.warm.cid, Tiering::Mow) };
    let image = has_image.then(|| starts::ghost_image(lane, testbed, way.tiering));
    let one = || {
        let ghost = starts::ghost(testbed, image.clone())?;
        Ok(CloneOptions { ghost: Some(ghost.id), ..way.clone() })
    };
    let part = |ways: Vec<CloneOptions>| {
        ways.iter().map(|_| one()).collect::<Result<Vec<CloneOptions>, BenchError>>()
    };
    let parts = evenly(&vec![way.clone(); THREADS], count);
    let subject = &lane.subject;
    std::thread::scope(|scope| {
        let start = |ways| scope.spawn(move || part(ways));
        let threads: Vec<_> = parts.into_iter().map(start).collect();
        let failed = || Err(subject.wrong("ghosts", &"a thread of the benchmark panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| failed())).collect()
    })
}

/// Waits until all containers have disappeared.
pub fn await_none(lane: &Lane, testbed: &Testbed) -> Result<(), BenchError> {
    let begun = Instant::now();
    while begun.elapsed() < END_TIMEOUT {
        if Client::connect(&testbed.node)?.ghosts()?.is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(lane.subject.wrong("ghosts", &"timed out waiting for the end of their containers"))
}
