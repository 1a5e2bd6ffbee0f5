//! A client in a child after `fork()`.
//!
//! The region is not mapped in the child, and the parent's lock is closed there: the child is not a client. It becomes one of
//! its own with the same handle, so that mailboxes and operations that the program knows stay valid. What the parent owns or
//! holds stays the parent's.

use crate::client::Client;
use crate::error::ObjectsError;
use crate::mailbox;
use crate::region::Platform;

impl<P: Platform> Client<P> {
    /// In a child after `fork()`: becomes a client of its own. It owns nothing, and holds no end of a mailbox. In the process
    /// that opened the region it does nothing.
    ///
    /// # Errors
    /// Those of [`Client::open_on`], [`ObjectsError::NotARegion`] if another region is at the path by now. The handle stays as it
    /// was.
    pub fn after_fork(&mut self) -> Result<(), ObjectsError> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let path = self.region.path();
        let mut own = Client::<P>::open_on(path)?;
        if own.region.header != self.region.header {
            return Err(ObjectsError::NotARegion { path: path.to_owned() });
        }
        for known in &self.mailboxes {
            own.mailboxes.push(mailbox::open(&own.region, known.name(), known.slots())?);
        }
        own.region.share_completions(&self.region);
        // The parent's handle does nothing when it is dropped here.
        *self = own;
        Ok(())
    }
}
