//! The serving end: a queue pair and windows for each connection.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use farfork_sys::sync::locked;
use sideway::ibverbs::completion::BasicCompletionQueue;
use sideway::ibverbs::protection_domain::ProtectionDomain;

use super::device::{Address, Device};
use super::error::RdmaError;
use super::pins::{Pin, Pins};
use super::verbs::{Queue, Registered};
use super::wire::{CONNECT, End, LEAVE, Offer, TOKEN_BYTES, WINDOW, Window};
use crate::error::Refusal;
use crate::lane::{Lane, Lanes};
use crate::region::{Exposed, RegionKey, Regions};

/// Lanes of a server that offers its regions by `device`, and pins at most so many bytes of them.
pub fn lanes(device: Device, regions: &Arc<Regions>, most_bytes: u64) -> Lanes {
    let (device, regions) = (Arc::new(device), Arc::clone(regions));
    let pins = Pins::new(most_bytes);
    Arc::new(move || {
        let (device, regions) = (Arc::clone(&device), Arc::clone(&regions));
        let (pins, open, windows) = (Arc::clone(&pins), Mutex::default(), Mutex::default());
        Box::new(Serving { device, regions, pins, open, windows })
    })
}

/// The lane of one connection.
struct Serving {
    device: Arc<Device>,
    regions: Arc<Regions>,
    pins: Arc<Pins>,
    /// What the client reads by; none before its first call.
    open: Mutex<Option<Open>>,
    /// By the key of the region.
    windows: Mutex<HashMap<[u8; RegionKey::BYTES], Arc<Exposure>>>,
}

struct Open {
    // Dropped in this order: nothing is registered in a domain that is gone.
    queue: Option<Queue>,
    token: Registered,
    token_bytes: [u8; TOKEN_BYTES],
    completions: Arc<BasicCompletionQueue>,
    address: Address,
    domain: Arc<ProtectionDomain>,
}

/// A region that the client may read until it is withdrawn.
struct Exposure(Mutex<Option<(Registered, Pin)>>);

impl Exposed for Exposure {
    fn withdraw(&self) {
        // The end of the registration waits for reads in progress.
        drop(locked(&self.0).take());
    }
}

impl Exposure {
    fn window(&self) -> Option<Window> {
        locked(&self.0).as_ref().map(|(registered, _)| registered.window())
    }
}

impl Lane for Serving {
    fn answer(&self, code: u8, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        match code {
            CONNECT => {
                let end = End::from_bytes(request).ok_or_else(other_version)?;
                let offer = self.connect(&end);
                Ok(offer.map_err(|error| refusal(&error.to_string()))?.to_bytes())
            }
            WINDOW => {
                let key = request.try_into().map_err(|_| other_version())?;
                Ok(self.window(key)?.to_bytes().to_vec())
            }
            LEAVE => {
                self.end();
                Ok(Vec::new())
            }
            _ => Err(other_version()),
        }
    }

    /// Files are registered as a whole. A client that leaves must be heard after what it has asked for before.
    fn is_slow(&self, code: u8) -> bool {
        code != CONNECT
    }
}

impl Serving {
    /// The client reads by the device no more: what is pinned for it is let go.
    fn end(&self) {
        drop(locked(&self.open).take());
        locked(&self.windows).clear();
    }

    /// Connects to the client's end. A client whose end failed connects again, and keeps its windows.
    fn connect(&self, peer: &End) -> Result<Offer, RdmaError> {
        let mut open = locked(&self.open);
        let open = match &mut *open {
            Some(open) => open,
            none => none.insert(Open::new(&self.device)?),
        };
        // The old one first: two would answer to one client.
        open.queue = None;
        let (device, address) = (&self.device, open.address);
        let mut queue = Queue::new(device, &open.domain, &open.completions, &address, None)?;
        queue.connect(device, &address, peer)?;
        let end = queue.end(device, &address);
        open.queue = Some(queue);
        Ok(Offer { end, window: open.token.window(), token: open.token_bytes })
    }

    /// The window of a region, [`Window::NONE`] if the device cannot read it.
    fn window(&self, key: &[u8; RegionKey::BYTES]) -> Result<Window, Refusal> {
        let domain = locked(&self.open).as_ref().map(|open| Arc::clone(&open.domain));
        let domain = domain.ok_or_else(|| refusal("the client has not connected by RDMA"))?;
        let key_of_region = RegionKey::from_bytes(key);
        let id = key_of_region.id;
        self.regions.expose(&key_of_region, |region| {
            let mut windows = locked(&self.windows);
            windows.retain(|_, one| locked(&one.0).is_some());
            if let Some((known, window)) =
                windows.get(key).and_then(|known| Some((known, known.window()?)))
            {
                return Ok((Arc::clone(known) as Arc<dyn Exposed>, window));
            }
            let bytes = region.bytes();
            let registered = match region.file().filter(|_| bytes > 0) {
                Some(file) => {
                    let pin = self.pins.take(id, bytes).map_err(|error| refusal(&error))?;
                    Registered::file(&domain, file, bytes).ok().map(|made| (made, pin))
                }
                None => None,
            };
            if registered.is_some() {
                // A region that cannot be read now is refused, as it is when its bytes are asked for.
                let read = region.read(0, &mut []);
                read.map_err(|error| Refusal::read_failed(&error))?;
            }
            let window = registered.as_ref().map_or(Window::NONE, |(made, _)| made.window());
            let exposure = Arc::new(Exposure(Mutex::new(registered)));
            windows.insert(*key, Arc::clone(&exposure));
            Ok((exposure, window))
        })
    }
}

impl Open {
    fn new(device: &Device) -> Result<Open, RdmaError> {
        let none = || RdmaError::NoDevice { why: format!("{} has no active port", device.name()) };
        let address = device.address(None).ok_or_else(none)?;
        let domain = device.context().alloc_pd().map_err(device.failed("make a domain"))?;
        let completions = completions(device, 16)?;
        let mut token_bytes = [0; TOKEN_BYTES];
        let failed = device.failed("register memory");
        getrandom::fill(&mut token_bytes)
            .map_err(std::io::Error::other)
            .and_then(|()| Registered::bytes(&domain, &token_bytes))
            .map(|token| Open { queue: None, token, token_bytes, completions, address, domain })
            .map_err(failed)
    }
}

/// A queue for so many completions.
pub fn completions(device: &Device, most: u32) -> Result<Arc<BasicCompletionQueue>, RdmaError> {
    let mut made = device
        .context()
        .create_cq_builder()
        .setup_cqe(most)
        .build()
        .map_err(device.failed("make a completion queue"))?;
    if let (Some(made), Some(batch)) = (Arc::get_mut(&mut made), NonZeroU32::new(32)) {
        made.setup_poll_batch(batch);
    }
    Ok(made)
}

fn other_version() -> Refusal {
    refusal("the call is not one of this version of farfork: use one version on both sides")
}

fn refusal(why: &str) -> Refusal {
    Refusal::Failed { why: why.to_owned() }
}
