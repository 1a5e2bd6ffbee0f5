//! Memory of the pool's medium that is read to measure it.

use std::sync::Mutex;

use crate::map::SharedMap;

/// It is in a file that no other process can reach, and made when it is first read.
#[derive(Default)]
pub(crate) struct Probe(pub(crate) Mutex<Option<SharedMap>>);
