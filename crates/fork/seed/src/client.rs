//! Asking the keeper of a seed, on whichever node.

use std::time::{Duration, Instant};

use farfork_fabric::tcp::{ClientSettings, TcpFabric};
use farfork_fabric::{Fabric, FabricError, Refusal, SharedKey};
use farfork_far::certificates_at;
use farfork_far::lineage::Owner;
use farfork_handle::Handle;
use farfork_types::{Cid, TlsFiles};
use serde::de::DeserializeOwned;

use crate::error::SeedError;
use crate::protocol::{Reclaimed, Renewed, Request};

/// How much longer than it was asked to wait a keeper may take to end a seed: it stops the parent.
const END_MARGIN: Duration = Duration::from_secs(20);
/// How long a keeper may take to answer what it has only to note.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// What proves a handle to its keeper.
pub fn shared_key(handle: &Handle) -> SharedKey {
    SharedKey::new(handle.id.to_bytes(), handle.connection_key())
}

/// Connects to the keeper of a seed. With `tls`, both ends prove certificates beside the handle's key.
///
/// # Errors
/// [`SeedError::NotKnown`], [`SeedError::Unreachable`], [`SeedError::Certificates`].
pub fn connect(handle: &Handle, tls: Option<&TlsFiles>) -> Result<TcpFabric, SeedError> {
    let (address, settings) = (handle.address.to_string(), proved_by(tls)?);
    TcpFabric::connect(&address, &shared_key(handle), settings).map_err(|error| {
        let (id, address) = (handle.id.to_string(), handle.address);
        match error {
            FabricError::WrongSharedKey { .. } | FabricError::PeerWithoutKey { .. } => {
                SeedError::NotKnown { id, address }
            }
            source => SeedError::Unreachable { id, source },
        }
    })
}

fn proved_by(tls: Option<&TlsFiles>) -> Result<ClientSettings, SeedError> {
    let certificates = tls.map(certificates_at).transpose()?;
    Ok(ClientSettings { certificates, ..ClientSettings::default() })
}

/// Ends a seed. Clones that may still fetch pages have `wait` to do so.
///
/// # Errors
/// Those of [`connect`].
pub fn reclaim(
    handle: &Handle,
    tls: Option<&TlsFiles>,
    wait: Duration,
) -> Result<Reclaimed, SeedError> {
    let keeper = connect(handle, tls)?;
    let request = Request::Reclaim { wait_ms: wait.as_millis() as u64 };
    ask(&keeper, handle, &request, wait.saturating_add(END_MARGIN))
}

/// Lets a seed expire so long from now.
///
/// # Errors
/// Those of [`connect`]; [`SeedError::Refused`] if it closes already.
pub fn renew(
    handle: &Handle,
    tls: Option<&TlsFiles>,
    expires: Duration,
) -> Result<Renewed, SeedError> {
    let keeper = connect(handle, tls)?;
    let request = Request::Renew { expires_ms: expires.as_millis() as u64 };
    ask(&keeper, handle, &request, ANSWER_LIMIT)
}

/// Has the seed `owner` live at least so long from now, for one that descends from it.
///
/// # Errors
/// It cannot be reached, or does not live any more; files of `tls` cannot be used.
pub fn outlive(owner: &Owner, tls: Option<&TlsFiles>, expires: Duration) -> Result<(), SeedError> {
    let id = Cid::from_bytes(owner.cid).to_string();
    let unreachable = |source| SeedError::Unreachable { id: id.clone(), source };
    let shared = SharedKey::new(owner.key_id, owner.secret);
    let keeper = TcpFabric::connect(&owner.address, &shared, proved_by(tls)?);
    let keeper = keeper.map_err(unreachable)?;
    let request = Request::Outlive { expires_ms: expires.as_millis() as u64 };
    let bytes = serde_json::to_vec(&request).unwrap_or_default();
    keeper.call(&bytes, Instant::now() + ANSWER_LIMIT).map(drop).map_err(unreachable)
}

fn ask<T: DeserializeOwned>(
    keeper: &TcpFabric,
    handle: &Handle,
    request: &Request,
    limit: Duration,
) -> Result<T, SeedError> {
    let (id, address) = (handle.id.to_string(), handle.address);
    let bytes = serde_json::to_vec(request).unwrap_or_default();
    match keeper.call(&bytes, Instant::now() + limit) {
        Ok(answer) => serde_json::from_slice(&answer).map_err(|_| SeedError::Protocol { id }),
        Err(FabricError::Refused { refusal: Refusal::Failed { why }, .. }) => {
            Err(SeedError::Refused { id, address, why })
        }
        Err(source) => Err(SeedError::Unreachable { id, source }),
    }
}
