//! The address that a handle carries.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

/// Documentation address (RFC 5737): no packet is sent to it.
const ELSEWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);

/// Listens at `wanted`, where port 0 is any free port. Without an address it is the one that this machine
/// has towards others; a machine without a route has only itself.
pub fn listen(wanted: Option<SocketAddr>) -> io::Result<(TcpListener, SocketAddr)> {
    let at = wanted.unwrap_or_else(|| SocketAddr::new(towards_others(), 0));
    let listener = TcpListener::bind(at)?;
    let mut address = listener.local_addr()?;
    if address.ip().is_unspecified() {
        address.set_ip(towards_others());
    }
    Ok((listener, address))
}

fn towards_others() -> IpAddr {
    let source = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(ELSEWHERE)?;
        Ok::<_, io::Error>(socket.local_addr()?.ip())
    };
    source().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_never_names_the_unspecified_address() {
        for wanted in [None, Some("0.0.0.0:0".parse().unwrap())] {
            let (listener, address) = listen(wanted).unwrap();
            assert!(!address.ip().is_unspecified());
            assert_eq!(listener.local_addr().unwrap().port(), address.port());
        }
        let (_, address) = listen(Some("127.0.0.1:0".parse().unwrap())).unwrap();
        assert_eq!(address.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
}
