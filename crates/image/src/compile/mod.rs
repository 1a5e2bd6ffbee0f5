//! From a model and the chunks that hold its pages to the plan.

pub mod arena;
