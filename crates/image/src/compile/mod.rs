//! From a model and the chunks that hold its pages to the plan.

pub mod arena;
mod credentials;
pub mod descriptors;
pub mod filters;
mod frame;
mod memory;
mod mounts;
mod process;
mod scheduling;
mod shared;
mod threads;

use farfork_plan::{PLAN_MAGIC, PlanHeader};

use crate::model::Model;
use arena::Arena;
pub use descriptors::{external_numbers, replaceable_numbers};

/// Where each chunk of a model's segments lies in the pool: offsets, multiples of the chunk size.
pub type Placement = [u64];

/// Compiles the base plan of a model whose chunks lie at `placement`.
///
/// The result is deterministic, so an image that moves to other chunks is compiled anew.
pub fn compile(model: &Model, placement: &Placement) -> Vec<u8> {
    let mut arena = Arena::new();
    let memory = memory::compile(model, placement, &mut arena);
    let process = process::compile(model, &mut arena);
    let threads = threads::compile(model, &mut arena);
    let header = PlanHeader {
        magic: PLAN_MAGIC,
        bytes: 0,
        init_ops: arena.ops(&memory.ops),
        task_ops: arena.ops(&process.ops),
        stop_ops: {
            let stop = process::stop(model);
            arena.ops(&stop)
        },
        threads: arena.table(&threads),
        windows: arena.table(&memory.windows),
        files: arena.table(&memory.files),
        spare_fd: process.spare_fd,
        spare_count: process.spare_count,
        is_pid_one: u32::from(model.process.pid == 1),
        reserved: 0,
    };
    arena.finish(header)
}
