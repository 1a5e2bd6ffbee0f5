//! The library as C programs have it.

mod examples;
mod instructions;
