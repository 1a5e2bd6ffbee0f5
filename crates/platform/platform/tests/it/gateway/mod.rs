//! OpenWhisk's REST interface as its clients see it: raw HTTP on a socket, against a store in a
//! file and a stub caller.

mod actions;
mod activations;
mod auth;
mod bed;
mod calls;
mod memory;
mod web;
mod wrong;
