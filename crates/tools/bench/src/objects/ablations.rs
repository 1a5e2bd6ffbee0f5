//! What two choices of the allocator are worth: where metadata lies, and how free memory is known (AEP, figure 9).
//!
//! ```text
//!  placement   metadata in the region │ node-local      measured, both in this machine's memory
//!              counted in an emulated cache ─► lines of metadata that come from the pool ─► modelled, in a slower pool
//!  free space  farfork │ bitmap │ buddy, both without protection against kills
//! ```
//! Times are those of the processor for this thread, so that other load disturbs less. A model adds to the measured time what a processor waits for lines: one after the other, which is the worst case.

mod counted;
mod free_space;

use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use farfork::header::Header;
use farfork::layout::SPAN_BYTES;
use farfork::{Client, Metadata, Node, Platform, Region};
use rustix::time::{ClockId, clock_gettime};

use self::counted::{Counted, Lines};
use super::allocators::touch;
use super::{NS, failed, shuffled};
use crate::error::BenchError;
use crate::progress;
use crate::samples::Samples;

/// Where metadata lies.
const CASES: [&str; 2] = ["metadata in the region", "metadata node-local"];
/// How objects are freed, and what is measured, counted and modelled.
const ORDERS: [[&str; 3]; 2] = [
    [
        "allocate many, free in the same order",
        "the same, lines of metadata from the pool (emulated)",
        "the same in a pool of 400 ns (modelled)",
    ],
    [
        "allocate many, free in random order",
        "free in random order, lines of metadata from the pool (emulated)",
        "free in random order in a pool of 400 ns (modelled)",
    ],
];
/// Their metadata has as many bytes as the emulated cache.
const COUNT: usize = 1_000_000;
/// More than memory of this machine, in the model.
const ADDED_NS: f64 = 400.0 - 100.0;

/// Adds all rows.
pub(super) fn add(directory: &Path, quick: bool, samples: &mut Samples) -> Result<(), BenchError> {
    let places = [
        Place::new(directory, "beside", Metadata::Region)?,
        Place::new(directory, "node-local", Metadata::Node(directory.to_owned()))?,
    ];
    let orders = [(0..COUNT).collect(), shuffled(COUNT)];
    let rounds = if quick { 6 } else { 15 };
    for round in 0..rounds {
        progress(&format!("placement of metadata, round {round} of {rounds}"));
        for turn in 0..places.len() {
            let at = (round + turn) % places.len();
            let mut client = Client::open(&places[at].path).map_err(failed)?;
            for (order, [metric, ..]) in orders.iter().zip(ORDERS) {
                samples.add(CASES[at], metric, NS, turns(&mut client, order, &mut |_| ()));
            }
        }
    }
    for (place, case) in places.iter().zip(CASES) {
        progress(&format!("counting lines, {case}"));
        for (order, [measured, lines, modelled]) in orders.iter().zip(ORDERS) {
            let counted = place.lines(order)?;
            samples.add(case, lines, "lines", counted);
            for ns in samples.values(case, measured).to_vec() {
                samples.add(case, modelled, NS, ns + counted * ADDED_NS);
            }
        }
        Region::destroy(&place.path).map_err(failed)?;
    }
    free_space::add(directory, quick, samples)
}

struct Place {
    path: PathBuf,
    header: Header,
}

impl Place {
    fn new(directory: &Path, name: &str, metadata: Metadata) -> Result<Place, BenchError> {
        let path = directory.join(name);
        let bytes = (80 * COUNT as u64 + (8 << 20)).next_multiple_of(SPAN_BYTES);
        Region::create_with(&path, bytes, false, &metadata).map_err(failed)?;
        let header = Region::<Node>::open(&path).map_err(failed)?.header().clone();
        Ok(Place { path, header })
    }

    /// Lines of metadata that an allocation and a free read from the region's file.
    fn lines(&self, order: &[usize]) -> Result<f64, BenchError> {
        counted::begin(Lines::of(&self.header));
        let mut client = Client::<Counted>::open_on(&self.path).map_err(failed)?;
        let begin = self.header.address;
        let mut use_object =
            |object: NonNull<u8>| counted::use_object(object.addr().get() as u64 - begin);
        turn(&mut client, order, &mut use_object);
        let before = counted::from_pool();
        turn(&mut client, order, &mut use_object);
        Ok((counted::from_pool() - before) as f64 / order.len() as f64)
    }
}

/// Nanoseconds of the processor for each of so many steps.
fn cpu_ns(count: usize, run: impl FnOnce()) -> f64 {
    let begun = cpu_time();
    run();
    (cpu_time() - begun) as f64 / count as f64
}

fn cpu_time() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Nanoseconds for an object in the second of two turns: in the first one, the client claims its spans.
fn turns<P: Platform>(
    client: &mut Client<P>,
    order: &[usize],
    each: &mut impl FnMut(NonNull<u8>),
) -> f64 {
    turn(client, order, each);
    cpu_ns(order.len(), || turn(client, order, each))
}

/// Allocates objects of 64 bytes, writes to each, and frees them in this order. `each` learns which object is used.
fn turn<P: Platform>(client: &mut Client<P>, order: &[usize], each: &mut impl FnMut(NonNull<u8>)) {
    let mut objects = Vec::with_capacity(order.len());
    for number in 0..order.len() {
        let object = client.allocate(64).expect("the region has room");
        each(object);
        touch(object, number as u64);
        objects.push(object);
    }
    for at in order {
        client.free(objects[*at]).expect("its own");
    }
}
