//! `--inherit-fd`: descriptors that the caller supplies to a clone.

use farfork_sys::words;
use farfork_types::wire::InheritedFd;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::str::FromStr;

use farfork_sys::socket_file;

/// `N=WHAT` supplies descriptor N, and `PID:N=WHAT` that of one process of a tree. `%i` in it is the
/// number of the clone, counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inherit {
    /// The descriptor of the clone.
    pub(crate) at: InheritedFd,
    kind: Kind,
    place: String,
}

/// How the place is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `PATH`: opened; a socket is connected to.
    Path,
    /// `listen:PATH`: a new Unix socket that listens there.
    Listen,
    /// `tcp:ADDRESS:PORT`: a new TCP socket that listens there, in the caller's network namespace.
    Tcp,
    /// `udp:ADDRESS:PORT`: a new UDP socket that is bound there.
    Udp,
}

impl Kind {
    /// The kind of `WHAT`, and the place in it.
    fn split(what: &str) -> (Kind, &str) {
        [("listen:", Kind::Listen), ("tcp:", Kind::Tcp), ("udp:", Kind::Udp)]
            .into_iter()
            .find_map(|(prefix, kind)| Some((kind, what.strip_prefix(prefix)?)))
            .unwrap_or((Kind::Path, what))
    }
}

impl FromStr for Inherit {
    type Err = String;

    fn from_str(text: &str) -> Result<Inherit, String> {
        let wrong = || {
            format!(
                "invalid descriptor '{text}' (expected N=WHAT, e.g. 3=/run/app.sock, \
                 3=listen:/run/app.sock, 3=tcp:127.0.0.1:8080, 3=udp:[::1]:53, or \
                 42:3=/run/app.sock for process 42)"
            )
        };
        let (place, what) = text.split_once('=').ok_or_else(wrong)?;
        let at = at(place).ok_or_else(wrong)?;
        let (kind, place) = Kind::split(what);
        let is_address = place.replace("%i", "0").parse::<SocketAddr>().is_ok();
        if place.is_empty() || matches!(kind, Kind::Tcp | Kind::Udp) && !is_address {
            return Err(wrong());
        }
        Ok(Inherit { at, kind, place: place.to_owned() })
    }
}

impl Inherit {
    /// The address of clone number `index`, if this makes a socket.
    pub(crate) fn address(&self, index: usize) -> Option<String> {
        (self.kind != Kind::Path).then(|| self.place.replace("%i", &index.to_string()))
    }

    /// Opens it for clone number `index`.
    pub(crate) fn open(&self, index: usize) -> Result<OwnedFd, String> {
        let place = self.place.replace("%i", &index.to_string());
        let result = match self.kind {
            Kind::Path => open(&place),
            Kind::Listen => listen(&place),
            Kind::Tcp => listen_tcp(&place),
            Kind::Udp => UdpSocket::bind(&place).map(OwnedFd::from),
        };
        result.map_err(|error| {
            format!("cannot open {place} for descriptor {}: {}", self.at, words::of(&error))
        })
    }
}

/// `N` or `PID:N`.
fn at(text: &str) -> Option<InheritedFd> {
    let Some((pid, fd)) = text.split_once(':') else {
        return Some(InheritedFd { process: None, fd: text.parse().ok()? });
    };
    Some(InheritedFd { process: Some(pid.parse().ok()?), fd: fd.parse().ok()? })
}

/// With the longest backlog that the system allows: the parent's backlog is unknown here.
fn listen_tcp(address: &str) -> io::Result<OwnedFd> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, i32::from(u16::MAX))?;
    Ok(listener.into())
}

fn listen(path: &str) -> io::Result<OwnedFd> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && clear(path)? => {
            UnixListener::bind(path).map(OwnedFd::from)
        }
        other => other.map(OwnedFd::from),
    }
}

/// Removes the socket of a dead process. Returns false for anything else, which stays.
fn clear(path: &str) -> io::Result<bool> {
    // The path is the caller's own, so its symbolic links may be followed.
    let path = Path::new(path);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    let parent = if parent == OsStr::new("") { Path::new(".") } else { parent };
    let directory = socket_file::directory(&fs::canonicalize(parent)?)?;
    socket_file::remove_dead(directory.as_fd(), name, None)
}

fn open(path: &str) -> io::Result<OwnedFd> {
    if fs::metadata(path)?.file_type().is_socket() {
        return UnixStream::connect(path).map(OwnedFd::from);
    }
    let both = OpenOptions::new().read(true).write(true).open(path);
    both.or_else(|_| File::open(path)).map(OwnedFd::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn a_number_and_a_path_are_needed() {
        let listening: Inherit = "3=listen:/run/a-%i.sock".parse().unwrap();
        assert_eq!((listening.at.fd, listening.place.as_str()), (3, "/run/a-%i.sock"));
        let of_process: Inherit = "42:3=/dev/null".parse().unwrap();
        assert_eq!(of_process.at, InheritedFd { process: Some(42), fd: 3 });
        assert_eq!(listening.kind, Kind::Listen);
        assert_eq!("7=/dev/null".parse::<Inherit>().unwrap().kind, Kind::Path);
        assert_eq!("7=tcp:[::1]:808%i".parse::<Inherit>().unwrap().kind, Kind::Tcp);
        let wrong = ["3=tcp:", "3=tcp:80", "3=tcp:localhost:80", "3=udp:127.0.0.1"];
        for text in ["", "3", "=x", "x=/dev/null", "3=", "-1=/x", "3=listen:", "a:3=/x", "42:=/x"]
            .into_iter()
            .chain(wrong)
        {
            assert!(text.parse::<Inherit>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_clone_gets_a_socket_of_its_own() {
        let directory = std::env::temp_dir().join(format!("farfork-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let text = format!("3=listen:{}/%i.sock", directory.display());
        let inherit: Inherit = text.parse().unwrap();
        let _first = inherit.open(0).unwrap();
        let _second = inherit.open(1).unwrap();
        assert!(inherit.open(0).is_err(), "a process listens there");
        fs::write(directory.join("2.sock"), "no socket").unwrap();
        assert!(inherit.open(2).is_err(), "a file is there");
        assert_eq!(fs::read(directory.join("2.sock")).unwrap(), b"no socket");
        // Not what a listener leaves: a process that another test has just forked may have it, too.
        mknodat(CWD, directory.join("3.sock"), FileType::Socket, Mode::RUSR, 0).unwrap();
        let _third = inherit.open(3).unwrap();
        let _client = UnixStream::connect(directory.join("1.sock")).unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }
}
