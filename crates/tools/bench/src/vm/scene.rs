//! What the guests have in memory, and what they do.

use farfork_minivmm::{Monitor, Pattern, Walk, Workload};

use super::failed;
use crate::error::BenchError;

/// The share of pages of zeros is the one that Aquifer reports of real snapshots.
const PATTERN: Pattern =
    Pattern { memory_bytes: 128 << 20, zero_permille: 828, group_pages: 4, seed: 11 };
/// Memory of a guest that does what a process did: most of it is free, as in small machines of functions.
const WORKLOAD_BYTES: u64 = 256 << 20;

const JUMPING: &str = "10 % of the pages, here and there";
const IN_ORDER: &str = "10 % of the pages, in order";
const WHOLE: &str = "all pages, in order";

/// One snapshot: a subject of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Its name.
    pub name: &'static str,
    is_recorded: bool,
    /// How many machines run at once, and the metric of that.
    pub crowds: &'static [(usize, &'static str)],
}

macro_rules! recorded {
    ($name:literal) => {
        Scene {
            name: $name,
            is_recorded: true,
            crowds: &[(8, concat!($name, ", 8 at once")), (32, concat!($name, ", 32 at once"))],
        }
    };
}

/// All scenes: one whose guest walks, and nine whose guests do what a real process did.
pub const SCENES: [Scene; 10] = [
    Scene {
        name: "synthetic",
        is_recorded: false,
        crowds: &[(32, "32 machines at once, 10 % here and there")],
    },
    recorded!("json"),
    recorded!("html"),
    recorded!("pyaes"),
    recorded!("compress"),
    recorded!("imageproc"),
    recorded!("thumbnail"),
    recorded!("pagerank"),
    recorded!("bfs"),
    recorded!("cnn"),
];

/// What a guest does.
#[derive(Clone, Copy, Debug)]
enum Job {
    Walk(Walk),
    Workload,
}

/// One thing that a guest of a scene does, under the name of its metric.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The metric.
    pub metric: &'static str,
    job: Job,
    /// What the guest has to end with.
    expected: u64,
}

/// The guests of a scene.
pub struct Guests {
    workload: Option<Workload>,
    /// What they do.
    pub tasks: Vec<Task>,
    /// What is known of their pages.
    pub note: String,
}

impl Scene {
    /// Whether its guests do what a real process did.
    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// A machine with the scene's memory, and what its guests do.
    pub fn start(&self) -> Result<(Monitor, Guests), BenchError> {
        if !self.is_recorded {
            let mut monitor = Monitor::start(&PATTERN, 1).map_err(failed)?;
            let tasks = walks(&mut monitor)?;
            let note = "synthetic: shares of zeros and of touched pages are made up".to_owned();
            return Ok((monitor, Guests { workload: None, tasks, note }));
        }
        let workload = Workload::named(self.name, WORKLOAD_BYTES).map_err(failed)?;
        let monitor = Monitor::start_workload(&workload, 1).map_err(failed)?;
        let expected = workload.expected();
        let tasks = vec![Task { metric: self.name, job: Job::Workload, expected }];
        let touched = workload.accesses().len() as u64;
        let note = format!(
            "touches {touched} of {} pages ({:.1} %), as a real process did; the rest of its memory is free",
            workload.pages(),
            100.0 * touched as f64 / workload.pages() as f64
        );
        Ok((monitor, Guests { workload: Some(workload), tasks, note }))
    }
}

impl Guests {
    /// Has a guest of a machine do its task, and checks what it has read.
    pub fn run(&self, monitor: &mut Monitor, task: &Task) -> Result<(), BenchError> {
        match self.go(monitor, task)? == task.expected {
            true => Ok(()),
            false => Err(BenchError::Answer {
                case: task.metric.to_owned(),
                reason: "the guest has read other bytes".to_owned(),
            }),
        }
    }

    /// The same without a check: it may have changed its memory before.
    pub fn go(&self, monitor: &mut Monitor, task: &Task) -> Result<u64, BenchError> {
        match (&task.job, &self.workload) {
            (Job::Walk(walk), _) => monitor.walk(walk).map_err(failed),
            (Job::Workload, Some(workload)) => monitor.invoke(workload).map_err(failed),
            (Job::Workload, None) => Err(failed("the scene has no workload")),
        }
    }
}

/// Each walk, and what it ends with.
fn walks(monitor: &mut Monitor) -> Result<Vec<Task>, BenchError> {
    let pages = PATTERN.pages();
    let in_order = Walk { count: pages / 10, first: pages / 4, ..Walk::whole(pages) };
    let walks = [
        (JUMPING, Walk::jumping(pages, pages / 10)),
        (IN_ORDER, in_order),
        (WHOLE, Walk::whole(pages)),
    ];
    let task = |(metric, walk): (_, Walk)| {
        let expected = monitor.walk(&walk).map_err(failed)?;
        Ok(Task { metric, job: Job::Walk(walk), expected })
    };
    walks.into_iter().map(task).collect()
}
