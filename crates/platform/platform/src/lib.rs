//! The serverless platform: OpenWhisk's interface, what it keeps, and the scheduling of functions.
//!
//! ```text
//!  serve      all of it as a program
//!  gateway    HTTP
//!  connections  of clients, and how long is waited for these
//!  dashboard  a page that shows what goes on
//!  scheduler  calls and instances of functions
//!  confine    what a function may do, and its files
//!  runtimes   what serves functions of other kinds than Python
//!  backend    nodes for real, on which instances are clones
//!  operator   keys of namespaces
//!  store      what survives a restart: keys, actions, activations, calls that were accepted
//!  trace      which trace a call is a part of
//!  api        OpenWhisk's documents, as clients send and read them (no I/O)
//! ```
//! Invariants: an identity of one namespace never reaches what belongs to another; what a client was
//! told to be accepted is in the store first.
#![forbid(unsafe_code)]

pub mod api;
pub mod backend;
mod clock;
pub mod confine;
pub mod connections;
pub mod dashboard;
pub mod gateway;
mod http;
pub mod operator;
pub mod runtimes;
pub mod scheduler;
pub mod serve;
pub mod store;
pub mod trace;
