//! What a client does with structures: see [`crate::nodes`] and [`crate::shared`].

use std::ptr::NonNull;

use crate::client::{Client, Timeout, wait};
use crate::error::ObjectsError;
use crate::layout::ClientId;
use crate::mailbox::Mailbox;
use crate::nodes::{self, Node, node};
use crate::recovery::recover_if_dead;
use crate::region::Platform;
use crate::shared::{self, RECORD_BYTES, Record};
use crate::sizes::{Class, LARGEST_CLASS_BYTES};
use crate::trailers::TRAILER_BYTES;
use crate::wakes::Side;
use crate::words::Words;

/// What a writer has unlinked is looked through after so many unlinked objects.
const UNLINKED: u32 = 64;

impl<P: Platform> Client<P> {
    /// Allocates an object whose first `references` words are references to other objects, all 0. `bytes` counts
    /// these words. Only such objects can be linked.
    ///
    /// # Errors
    /// [`ObjectsError::Full`], [`ObjectsError::BadNode`].
    pub fn allocate_linkable(
        &mut self,
        bytes: usize,
        references: u16,
    ) -> Result<NonNull<u8>, ObjectsError> {
        let bytes = bytes.max(8 * usize::from(references));
        let trailer = if self.checks.is_some() { TRAILER_BYTES } else { 0 };
        let most = LARGEST_CLASS_BYTES - 16 - trailer;
        let class = Class::of_counted(bytes.saturating_add(trailer));
        let class = class.ok_or(ObjectsError::BadNode { bytes, most })?;
        if self.checks.is_some() {
            let region = self.region.again();
            let prepare = |granule| nodes::prepare(&region, granule, references);
            let allocated = self.allocate_checked(bytes, Some(class), prepare);
            return self.judged(allocated);
        }
        let prepare = |granule| nodes::prepare(&self.region, granule, references);
        let granule = match self.heap.allocate_prepared(&self.region, class, prepare) {
            Some(granule) => granule,
            None => self.heap.allocate_after(&self.region, class, prepare)?,
        };
        Ok(self.pointer(granule))
    }

    /// Lets reference `field` of `from` mean `to`, or nothing, instead of what it means now. `from` belongs to the
    /// structure of `root`, whose writer this client is: it owns the root, or has the writer's role. `to` is an
    /// object of the client, which becomes part of the structure, or is part of it. What loses its last reference is
    /// freed, with all that only it refers to: at once, or when no other client holds the structure.
    ///
    /// # Errors
    /// [`ObjectsError::NotLinkable`], [`ObjectsError::NotWriter`].
    pub fn change(
        &mut self,
        root: NonNull<u8>,
        from: NonNull<u8>,
        field: u16,
        to: Option<NonNull<u8>>,
    ) -> Result<(), ObjectsError> {
        let record = self.written(root)?;
        let from_node = match from == root {
            true => self.node_at(from),
            false => self.linked(from).and_then(|granule| node(&self.region, granule)),
        };
        let reason = "it has no such reference, or is not in a structure";
        let wrong = |pointer: NonNull<u8>, reason| ObjectsError::NotLinkable {
            pointer: pointer.addr().get(),
            reason,
        };
        let from_node = from_node
            .filter(|node| u32::from(field) < node.fields)
            .ok_or_else(|| wrong(from, reason))?;
        let target = match to {
            Some(to) if to == root || to == from => {
                return Err(wrong(to, "it would refer to itself"));
            }
            Some(to) => Some(self.linkable(to).ok_or_else(|| {
                wrong(to, "it is not the client's, was unlinked, or has no room for references")
            })?),
            None => None,
        };
        let dying = match record {
            Some(record) => record.deferred_at(&self.region),
            None => self.region.layout.dying(self.id),
        };
        let mut actor = self.actor();
        actor.change(from_node, u32::from(field), target, dying);
        match record {
            None => actor.free_dying(),
            Some(record) => {
                self.unlinked = (self.unlinked + 1) % UNLINKED;
                if self.unlinked == 0 {
                    self.actor().collect(record);
                }
            }
        }
        Ok(())
    }

    /// Lets a reference that means nothing mean `to`.
    ///
    /// # Errors
    /// Those of [`Client::change`], also if the reference means something.
    pub fn link(
        &mut self,
        root: NonNull<u8>,
        from: NonNull<u8>,
        field: u16,
        to: NonNull<u8>,
    ) -> Result<(), ObjectsError> {
        let found = self.node_at(from).filter(|node| u32::from(field) < node.fields);
        let is_taken =
            |node: &Node| self.region.words.word(node.field(&self.region, field.into())) != 0;
        if found.as_ref().is_some_and(is_taken) {
            let (pointer, reason) = (from.addr().get(), "the reference means an object already");
            return Err(ObjectsError::NotLinkable { pointer, reason });
        }
        self.change(root, from, field, Some(to))
    }

    /// Lets a reference mean nothing.
    ///
    /// # Errors
    /// Those of [`Client::change`].
    pub fn unlink(
        &mut self,
        root: NonNull<u8>,
        from: NonNull<u8>,
        field: u16,
    ) -> Result<(), ObjectsError> {
        self.change(root, from, field, None)
    }

    /// Sends the root of a structure that this client owns or holds, and goes on holding it. The structure is shared
    /// from then on: every client that receives it holds it until [`Client::release`], and it is freed with the last
    /// hold. Returns whether there was room in time.
    ///
    /// # Errors
    /// [`ObjectsError::NotLinkable`], [`ObjectsError::Full`], [`ObjectsError::RoleTaken`].
    pub fn send_root(
        &mut self,
        mailbox: Mailbox,
        root: NonNull<u8>,
        timeout: Timeout,
    ) -> Result<bool, ObjectsError> {
        let record = self.shared(root)?;
        let (region, id) = (&self.region, self.id);
        let ends = &mut self.mailboxes[mailbox.0];
        if ends.send_root(region, id, record)? {
            return Ok(true);
        }
        let sent = wait(region, ends, Side::Sender, timeout, |ends| {
            Ok(ends.send_root(region, id, record)?.then_some(()))
        })?;
        Ok(sent.is_some())
    }

    /// Gives up one hold of a shared structure: one for the send that shared it, one for each receive.
    ///
    /// # Errors
    /// [`ObjectsError::NotLinkable`].
    pub fn release(&mut self, root: NonNull<u8>) -> Result<(), ObjectsError> {
        let record = self.held(root)?;
        let granule = record.root(&self.region).unwrap_or(0);
        let left = self.held.get(&granule).copied().unwrap_or(0);
        if left > 1 {
            self.held.insert(granule, left - 1);
            return Ok(());
        }
        self.held.remove(&granule);
        self.actor().release(record);
        Ok(())
    }

    /// Passes the writer's role on: to the client `to`, or to any that takes it (`None`). Called by another client than
    /// the writer with its own id, takes it: if it was passed on, or the writer is dead.
    ///
    /// # Errors
    /// [`ObjectsError::NotWriter`] says which client is the writer.
    pub fn transfer_writer(
        &mut self,
        root: NonNull<u8>,
        to: Option<ClientId>,
    ) -> Result<(), ObjectsError> {
        let record = self.held(root)?;
        let (at, own) = (record.writer_at(&self.region), u64::from(self.id.number()));
        loop {
            let word = self.region.words.word(at);
            let other = ClientId::new(word as u8).filter(|other| u64::from(other.number()) != own);
            let is_free = match other {
                _ if word == own && to == Some(self.id) => return Ok(()),
                _ if word == own => {
                    let next = to.map_or(0, |to| shared::OFFERED + u64::from(to.number()));
                    self.region.words.set_word(at, next);
                    return Ok(());
                }
                _ if to != Some(self.id) => false,
                None => true,
                Some(other) if word >= shared::OFFERED => {
                    !(self.region.is_alive(other)? && record.is_holder(&self.region, other))
                }
                // Recovery takes its role away.
                Some(other) => {
                    if recover_if_dead(&self.region, other)? {
                        continue;
                    }
                    false
                }
            };
            if !is_free {
                return Err(ObjectsError::NotWriter { writer: word as u8 });
            }
            if self.region.words.claim_word(at, word, own) {
                return Ok(());
            }
        }
    }

    /// Frees what the writer has unlinked from a shared structure, if no other client holds it; returns whether. Called
    /// now and then by [`Client::change`], too.
    ///
    /// # Errors
    /// [`ObjectsError::NotWriter`].
    pub fn collect(&mut self, root: NonNull<u8>) -> Result<bool, ObjectsError> {
        match self.written(root)? {
            Some(record) => Ok(self.actor().collect(record)),
            None => Ok(true),
        }
    }

    /// The object with references at `object`, whatever it belongs to.
    fn node_at(&self, object: NonNull<u8>) -> Option<Node> {
        let granule = self.linked(object).or_else(|| self.owned(object, "link").ok())?;
        node(&self.region, granule)
    }

    /// An object that can become the target of a reference.
    fn linkable(&self, to: NonNull<u8>) -> Option<Node> {
        let is_linked = self.linked(to).is_some();
        // A linked object without a reference is being freed, or is a root.
        self.node_at(to).filter(|node| (node.count > 0) == is_linked)
    }

    /// The record of the structure, if it is a shared one. An error unless the client may change it.
    fn written(&self, root: NonNull<u8>) -> Result<Option<Record>, ObjectsError> {
        if self.owned(root, "link").is_ok() {
            return Ok(None);
        }
        let record = self.held(root)?;
        let writer = self.region.words.word(record.writer_at(&self.region));
        match writer == u64::from(self.id.number()) {
            true => Ok(Some(record)),
            false => Err(ObjectsError::NotWriter { writer: writer as u8 }),
        }
    }

    /// The record of a shared structure that the client holds.
    fn held(&self, root: NonNull<u8>) -> Result<Record, ObjectsError> {
        let record = self.linked(root).and_then(|root| shared::record_of(&self.region, root));
        record.filter(|record| record.is_holder(&self.region, self.id)).ok_or(
            ObjectsError::NotLinkable {
                pointer: root.addr().get(),
                reason: "it is not the root of a structure that the client holds",
            },
        )
    }

    /// The record of a structure, which becomes a shared one if it is not yet.
    fn shared(&mut self, root: NonNull<u8>) -> Result<Record, ObjectsError> {
        let Ok(granule) = self.owned(root, "share") else { return self.held(root) };
        if node(&self.region, granule).is_none() {
            return self.held(root);
        }
        let place = self.allocate(RECORD_BYTES)?;
        let place = self.owned(place, "share")?;
        let record = self.actor().share(granule, place);
        self.held.insert(granule, 1);
        Ok(record)
    }
}
