//! The command line as its users see it.

mod doctor;
mod errors;
mod generate;
mod platform;
mod profile;
mod replay;
mod sim;
mod vm;
