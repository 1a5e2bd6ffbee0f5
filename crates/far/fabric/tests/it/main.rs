//! What holds for every transport, and what holds for frames of TCP.

mod conformance;
mod proxy;
mod regions;
mod tcp;
