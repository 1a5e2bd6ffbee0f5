//! The devices of this machine, and the address of each by which a peer reaches it.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use farfork_sys::words;
use rustix::io::Errno;
use sideway::ibverbs::address::GidType;
use sideway::ibverbs::device::{DeviceInfo, DeviceList, GetDeviceListErrorKind};
use sideway::ibverbs::device_context::{DeviceContext, LinkLayer, PortState};

use super::error::RdmaError;

/// The most reads that an end has, or answers, at once.
const MOST_READS: i32 = 16;

/// A device that is open.
pub struct Device {
    context: Arc<DeviceContext>,
    name: String,
    reads: u8,
}

/// An address of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    pub port: u8,
    /// Its place in the port's table.
    pub index: u8,
    pub gid: [u8; 16],
    pub lid: u16,
    pub mtu: u8,
    is_ethernet: bool,
}

impl Device {
    /// The device with this name, such as `mlx5_0`.
    ///
    /// # Errors
    ///
    /// There is no such device, no library, or it cannot be opened.
    pub fn named(name: &str) -> Result<Device, RdmaError> {
        let mut known = Vec::new();
        for device in all()? {
            if device.name == name {
                return Ok(device);
            }
            known.push(device.name);
        }
        Err(RdmaError::Unknown { name: name.to_owned(), known: known.join(", ") })
    }

    /// The device by which a peer is reached that is connected to from `local`: the one that has this address, or else
    /// the first one with an active port.
    pub(super) fn towards(local: Option<IpAddr>) -> Result<(Device, Address), RdmaError> {
        let mut first = None;
        for device in all()? {
            let Some(address) = device.address(local) else { continue };
            if local.is_some_and(|local| address.gid == gid_of(local)) {
                return Ok((device, address));
            }
            first.get_or_insert((device, address));
        }
        let none = || RdmaError::NoDevice { why: "none has an active port".to_owned() };
        first.ok_or_else(none)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }

    /// Reads that it has, or answers, at once.
    pub(super) fn reads(&self) -> u8 {
        self.reads
    }

    /// Its address: the one that equals `local`, or else the best.
    pub(super) fn address(&self, local: Option<IpAddr>) -> Option<Address> {
        let addresses = self.addresses();
        let wanted = local.map(gid_of);
        let same = addresses.iter().find(|address| Some(address.gid) == wanted);
        // What a link gives itself (fe80::) comes last.
        let best = || addresses.iter().min_by_key(|address| address.gid[0] == 0xfe);
        same.or_else(best).copied()
    }

    /// Addresses of active ports: of RoCE v2 on Ethernet, all on InfiniBand.
    fn addresses(&self) -> Vec<Address> {
        let entries = self.context.query_gid_table().unwrap_or_default();
        let address = |entry: &sideway::ibverbs::address::GidEntry| {
            let port = u8::try_from(entry.port_num()).ok()?;
            let found = self.context.query_port(port).ok()?;
            let is_ethernet = found.link_layer() == LinkLayer::Ethernet;
            let is_usable = !is_ethernet || entry.gid_type() == GidType::RoceV2;
            let index = u8::try_from(entry.gid_index()).ok()?;
            (is_usable && found.port_state() == PortState::Active).then(|| Address {
                port,
                index,
                gid: entry.gid().raw,
                lid: found.lid(),
                mtu: found.active_mtu() as u8,
                is_ethernet,
            })
        };
        entries.iter().filter_map(address).collect()
    }

    /// For `map_err`.
    pub(super) fn failed<E: Error + 'static>(&self, what: &'static str) -> impl Fn(E) -> RdmaError {
        let device = self.name.clone();
        move |error| RdmaError::Device { device: device.clone(), what, why: reason(&error) }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What devices there are, and their addresses.
///
/// # Errors
///
/// There is no library, or no device with an active port.
pub fn examine() -> Result<Vec<String>, RdmaError> {
    let mut found = Vec::new();
    for device in all()? {
        for address in device.addresses() {
            let gid = Ipv6Addr::from(address.gid);
            let shown = gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |ip| ip.to_string());
            let link = if address.is_ethernet { "RoCE v2" } else { "InfiniBand" };
            found.push(format!("{} ({link} {shown})", device.name));
        }
    }
    let none = || RdmaError::NoDevice { why: "none has an active port".to_owned() };
    if found.is_empty() { Err(none()) } else { Ok(found) }
}

fn all() -> Result<Vec<Device>, RdmaError> {
    let list = DeviceList::new().map_err(|error| match error.0 {
        // What each function of the library answers until it is loaded.
        GetDeviceListErrorKind::Ibverbs(error)
            if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) =>
        {
            RdmaError::NoLibrary
        }
        // What the library answers where the kernel has no module for it.
        GetDeviceListErrorKind::Ibverbs(error) => RdmaError::NoDevice { why: words::of(&error) },
        _ => RdmaError::NoDevice { why: "the library lists none".to_owned() },
    })?;
    let devices: Vec<Device> = list.iter().filter_map(|device| opened(&device).ok()).collect();
    let none = || RdmaError::NoDevice { why: "the kernel shows none".to_owned() };
    if devices.is_empty() { Err(none()) } else { Ok(devices) }
}

fn opened(device: &sideway::ibverbs::device::Device<'_>) -> Result<Device, RdmaError> {
    let name = device.name();
    let failed = |error: &(dyn Error + 'static)| RdmaError::Device {
        device: name.clone(),
        what: "work",
        why: reason(error),
    };
    let context = device.open().map_err(|error| failed(&error))?;
    let facts = context.query_device().map_err(|error| failed(&error))?;
    let reads = facts.max_qp_rd_atom().min(facts.max_qp_init_rd_atom()).clamp(1, MOST_READS);
    Ok(Device { context, name, reads: reads as u8 })
}

/// How RoCE writes an address.
fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The cause of an error, in words. The crate's own errors only say what was done.
pub fn reason(error: &(dyn Error + 'static)) -> String {
    let mut deepest = error;
    while let Some(next) = deepest.source() {
        deepest = next;
    }
    match deepest.downcast_ref::<std::io::Error>() {
        Some(system) => words::of(system),
        None => deepest.to_string(),
    }
}
