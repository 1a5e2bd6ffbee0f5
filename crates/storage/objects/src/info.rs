//! What `farfork region info` shows.

use std::path::PathBuf;

use serde::Serialize;

use crate::census;
use crate::error::ObjectsError;
use crate::guards::OperationInfo;
use crate::layout::{ClientId, IN_MAILBOX, MAILBOXES, PAGE_BYTES};
use crate::region::{Platform, Region};
use crate::span::Span;
use crate::spans::span;
use crate::words::Words;

/// What `farfork region info` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Info {
    /// The file.
    pub path: PathBuf,
    /// Version of the format.
    pub version: u32,
    /// Whether its clients find misuse.
    pub checked: bool,
    /// Identity of the region, in hexadecimal digits.
    pub uuid: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Where every client maps it.
    pub address: u64,
    /// Its metadata, if that is in this node's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<MetadataInfo>,
    /// Bytes for objects.
    pub data_bytes: u64,
    /// Bytes that no object takes.
    pub free_bytes: u64,
    /// Objects, those in mailboxes among them.
    pub objects: u64,
    /// Objects in mailboxes.
    pub objects_in_mailboxes: u64,
    /// Spans of 64 KiB that no client has. An object beyond 32 KiB takes whole ones, side by side.
    pub spans_free: u64,
    /// Living clients.
    pub clients: Vec<ClientInfo>,
    /// Dead clients whose objects have not been recovered.
    pub clients_dead: u64,
    /// Mailboxes.
    pub mailboxes: Vec<MailboxInfo>,
    /// Guarded operations.
    pub operations: Vec<OperationInfo>,
}

/// Metadata in the memory of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MetadataInfo {
    /// Its file.
    pub path: PathBuf,
    /// Bytes that it takes.
    pub bytes: u64,
    /// How often it was made: 1 unless it was lost.
    pub generation: u64,
}

/// A living client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientInfo {
    /// Its id.
    pub id: u8,
    /// Its process, in the PID namespace of that process.
    pub pid: u64,
    /// Objects that it owns.
    pub objects: u64,
    /// Bytes that they take.
    pub bytes: u64,
}

/// A mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MailboxInfo {
    /// Its name.
    pub name: String,
    /// Its slots.
    pub slots: u64,
    /// Slots that are not empty.
    pub messages: u64,
    /// Client that sends. 0: none.
    pub sender: u8,
    /// Client that receives. 0: none.
    pub receiver: u8,
}

impl<P: Platform> Region<P> {
    /// Where its metadata lies, if that is in this node's memory.
    fn metadata_info(&self) -> Option<MetadataInfo> {
        let parts = self.layout.node_local_parts();
        Some(MetadataInfo {
            path: self.metadata.clone()?,
            bytes: PAGE_BYTES + parts.map(|part| part.end - part.start).iter().sum::<u64>(),
            generation: self.generation?,
        })
    }

    /// Space, clients and mailboxes. Clients go on, so that the figures are of no single moment.
    ///
    /// # Errors
    /// [`ObjectsError::Io`].
    pub fn info(&self) -> Result<Info, ObjectsError> {
        self.check_generation()?;
        let mut counts = [(0u64, 0u64); 256];
        census::objects(self, |seen| {
            let (objects, bytes) = &mut counts[usize::from(seen.owner)];
            *objects += 1;
            *bytes += seen.bytes;
        });
        let mut clients = Vec::new();
        let mut clients_dead = 0;
        for id in ClientId::all().filter(|id| self.is_in_use(*id)) {
            let (objects, bytes) = counts[usize::from(id.number())];
            let pid = self.words.word(self.layout.client_pid(id));
            match self.is_alive(id)? {
                true => clients.push(ClientInfo { id: id.number(), pid, objects, bytes }),
                false => clients_dead += 1,
            }
        }
        let taken: u64 = counts.iter().map(|(_, bytes)| bytes).sum();
        Ok(Info {
            path: self.path.clone(),
            version: self.header.version(),
            checked: self.header.is_checked,
            uuid: self.header.uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
            bytes: self.header.bytes,
            address: self.header.address,
            metadata: self.metadata_info(),
            data_bytes: self.layout.span_bytes(),
            free_bytes: self.layout.span_bytes().saturating_sub(taken),
            objects: counts.iter().map(|(objects, _)| objects).sum(),
            objects_in_mailboxes: counts[usize::from(IN_MAILBOX)].0,
            spans_free: self.layout.spans().filter(|at| span(self, *at) == Some(Span::Free)).count()
                as u64,
            clients,
            clients_dead,
            mailboxes: (0..MAILBOXES).filter_map(|index| self.mailbox_info(index)).collect(),
            operations: self.operations(),
        })
    }

    fn mailbox_info(&self, index: usize) -> Option<MailboxInfo> {
        let name = self.mailbox_name(index)?;
        let at = self.layout.mailbox(index);
        let slots = self.slots(index);
        let is_full = |slot: &u64| self.words.word(at.slot(*slot)) != 0;
        Some(MailboxInfo {
            name,
            slots,
            messages: (0..slots).filter(is_full).count() as u64,
            sender: self.words.word(at.sender()) as u8,
            receiver: self.words.word(at.receiver()) as u8,
        })
    }
}
