//! Objects in shared memory, tested from outside of the crate. No test here starts a process: a child has the locks of
//! all clients from the fork until it executes its program, so that clients of other tests would live on.

mod lost;
mod references;
mod refusals;
mod runs;
mod structures;
mod waiting;
