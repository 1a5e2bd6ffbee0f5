//! Whether the files that an image refers to are what they were.

use crate::model::Model;

/// placeholder
pub fn changed_files(_model: &Model) -> Vec<String> {
    Vec::new()
}
