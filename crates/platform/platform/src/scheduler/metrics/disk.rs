//! What namespaces take of the disk.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::{gauge, signed};
use crate::store::Store;

/// Asks the store.
#[derive(Debug)]
pub struct DiskGauges(pub Arc<dyn Store>);

impl Collector for DiskGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // If the store fails, other metrics are still shown.
        let all = self.0.disk_usage().unwrap_or_default();
        if all.is_empty() {
            return Ok(());
        }
        let about = ("farfork_namespace_disk", "What a namespace's code and records take.");
        let mut family = gauge(&mut encoder, about, Some(&Unit::Bytes))?;
        for (namespace, usage) in &all {
            for (kind, bytes) in [("code", usage.code_bytes), ("records", usage.record_bytes)] {
                let labels = [("namespace", namespace.as_str()), ("kind", kind)];
                family.encode_family(&labels)?.encode_gauge(&signed(bytes))?;
            }
        }
        Ok(())
    }
}
