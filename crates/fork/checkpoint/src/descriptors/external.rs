//! Files whose other end lies outside of the process: the caller of restore supplies them.

use farfork_image::model::OpenFile;

/// A file that was `description`.
pub fn of(description: impl Into<String>) -> OpenFile {
    OpenFile::External { description: description.into() }
}
