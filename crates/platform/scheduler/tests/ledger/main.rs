//! The ledger of the nodes. Figures of memory are in MiB.

mod bed;
mod ghosts;
mod instances;
mod properties;
