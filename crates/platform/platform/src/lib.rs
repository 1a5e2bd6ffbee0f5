//! The serverless platform: OpenWhisk's interface, its store, and the scheduling of functions.
//!
//! ```text
//!  serve      the platform as a program
//!  gateway    HTTP
//!  connections  client connections and their timeouts
//!  dashboard  the page that shows the platform's state
//!  scheduler  calls and instances of functions
//!  confine    the confinement of functions, and their files
//!  runtimes   servers of functions of other kinds than Python
//!  backend    real nodes, on which instances are clones
//!  simulated  nodes in this process, for tests and the simulator (feature `simulated`)
//!  operator   keys of namespaces
//!  memory     limits of the memory of requests
//!  store      what survives a restart: keys, actions, activations, accepted calls
//!  trace      the trace that a call belongs to
//!  api        OpenWhisk's documents, as clients send and read them (no I/O)
//! ```
//! Invariants: a key of one namespace never reaches what belongs to another. A call is in the store
//! before its client gets the answer that it was accepted.
#![forbid(unsafe_code)]

pub mod api;
pub mod backend;
mod clock;
pub mod confine;
pub mod connections;
pub mod dashboard;
pub mod gateway;
mod held;
mod http;
pub mod memory;
pub mod operator;
pub mod runtimes;
pub mod scheduler;
pub mod serve;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod store;
pub mod trace;
