//! Counters and signals as descriptors: eventfd, signalfd.

use farfork_image::model::OpenFile;

use super::error::{CaptureResult, DescriptorError, unexpected};
use super::subject::Subject;
use super::table::Entry;

/// An eventfd.
pub fn capture(entry: &Entry, subject: &Subject) -> CaptureResult {
    Ok(OpenFile::Event {
        count: hex(entry, subject, "eventfd-count")?,
        flags: entry.info.status_flags(),
        is_semaphore: entry.info.value("eventfd-semaphore") == Some("1"),
    })
}

/// A signalfd. Signals that wait for it are pending ones of the process.
pub fn signals(entry: &Entry, subject: &Subject) -> CaptureResult {
    let mask = hex(entry, subject, "sigmask")?;
    Ok(OpenFile::Signal { mask, flags: entry.info.status_flags() })
}

fn hex(entry: &Entry, subject: &Subject, key: &str) -> Result<u64, DescriptorError> {
    entry
        .info
        .value(key)
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| unexpected(subject.pid, format!("{key} of fd {}", entry.fd)))
}
