//! Shared keys: what proves two nodes to each other.

use std::fmt;
use std::sync::Arc;

/// Names a shared key. It is not a secret.
pub type KeyId = [u8; 16];

/// A secret that both ends of a connection know. It authenticates them and encrypts what they say.
#[derive(Clone)]
pub struct SharedKey {
    id: KeyId,
    secret: [u8; 32],
}

/// Finds the key that a connecting node names.
pub type KeyRing = Arc<dyn Fn(&KeyId) -> Option<SharedKey> + Send + Sync>;

impl SharedKey {
    /// A key of these bytes.
    pub fn new(id: KeyId, secret: [u8; 32]) -> SharedKey {
        SharedKey { id, secret }
    }

    /// A new random key.
    ///
    /// # Errors
    ///
    /// The kernel's source of random bytes failed.
    pub fn random() -> Result<SharedKey, getrandom::Error> {
        let mut key = SharedKey { id: [0; 16], secret: [0; 32] };
        getrandom::fill(&mut key.id)?;
        getrandom::fill(&mut key.secret)?;
        Ok(key)
    }

    /// The key's name.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The secret: 32 bytes.
    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// A ring that has this key alone.
    pub fn alone(self) -> KeyRing {
        Arc::new(move |id| (*id == self.id).then(|| self.clone()))
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedKey").field("id", &self.id).finish_non_exhaustive()
    }
}
