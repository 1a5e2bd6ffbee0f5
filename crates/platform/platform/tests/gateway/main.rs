//! OpenWhisk's REST interface as its clients see it: raw HTTP on a socket, against a store in a file
//! and a caller that answers as it is told.

mod actions;
mod activations;
mod auth;
mod bed;
mod calls;
mod web;
mod wrong;
