//! Where the processes of a tree wait for each other.

use farfork_plan::{Op, What, nr};

use crate::model::Model;

/// Waits until `count` members have arrived at a stage; 0 is not to wait.
pub fn meet(stage: u64, count: usize) -> Op {
    Op::new(What::Kinship, nr::MEET, &[stage, count as u64])
}

/// How many members have not ended.
pub fn living(model: &Model) -> usize {
    model.members.iter().filter(|member| member.kinship.ended.is_none()).count()
}
