//! The scheduler on nodes that a test makes up: actions really are called over HTTP, and
//! print on streams, but time is the test's, and nodes do and fail what it says.

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
mod snapshot;
mod world;
