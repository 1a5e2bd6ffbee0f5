//! Checkpoints of real processes, as far as they only look, and the document of what is refused.

mod descriptors;
mod refusals;
mod subject;
mod tree;
