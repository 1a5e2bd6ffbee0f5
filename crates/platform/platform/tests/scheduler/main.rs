//! The scheduler on simulated nodes: actions are really called over HTTP and print to streams, but
//! the test controls the clock and what the nodes do.

#[path = "../common/small_disk.rs"]
mod small_disk;

mod calls;
mod changes;
mod confined;
mod frozen;
mod full_disk;
mod images;
mod launched;
mod metrics;
mod nodes;
mod room;
mod scaling;
mod shares;
mod snapshot;
mod world;
