//! What namespaces take of the disk.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::{gauge, signed};
use crate::confine::{self, Folders};
use crate::store::Store;

/// Asks the store, and looks at the folders of functions.
#[derive(Debug)]
pub struct DiskGauges {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The unpacked files of functions.
    pub folders: Folders,
}

impl Collector for DiskGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // If the store fails, other metrics are still shown.
        let all = self.store.disk_usage().unwrap_or_default();
        let unpacked = self.folders.all_taken().unwrap_or_default();
        if all.is_empty() {
            return Ok(());
        }
        let about = ("farfork_namespace_disk", "What a namespace takes of the disk.");
        let mut family = gauge(&mut encoder, about, Some(&Unit::Bytes))?;
        for (namespace, usage) in &all {
            let number = self.store.number(namespace).map(confine::user);
            let files = number.ok().and_then(|user| unpacked.get(&user)).copied().unwrap_or(0);
            let kinds =
                [("code", usage.code_bytes), ("unpacked", files), ("records", usage.record_bytes)];
            for (kind, bytes) in kinds {
                let labels = [("namespace", namespace.as_str()), ("kind", kind)];
                family.encode_family(&labels)?.encode_gauge(&signed(bytes))?;
            }
        }
        Ok(())
    }
}
