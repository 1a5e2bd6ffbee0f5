//! Where a server accepts connections: a TCP port, and a socket of its host.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use super::socket::{self, Socket};
use super::wire::{SOCKET_EXTENSION, invalid};

/// One of the two.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub fn try_clone(&self) -> io::Result<Listener> {
        Ok(match self {
            Listener::Tcp(listener) => Listener::Tcp(listener.try_clone()?),
            Listener::Unix(listener) => Listener::Unix(listener.try_clone()?),
        })
    }

    pub fn accept(&self) -> io::Result<Socket> {
        Ok(match self {
            Listener::Tcp(listener) => Socket::Tcp(listener.accept()?.0),
            Listener::Unix(listener) => Socket::Unix(listener.accept()?.0),
        })
    }

    /// On Linux this ends a waiting accept.
    pub fn shut_down(&self) {
        let both = rustix::net::Shutdown::Both;
        let _ = match self {
            Listener::Tcp(listener) => rustix::net::shutdown(listener, both),
            Listener::Unix(listener) => rustix::net::shutdown(listener, both),
        };
    }
}

/// A socket with a name, which goes when this is dropped.
pub struct LocalListener {
    path: PathBuf,
    listener: UnixListener,
}

impl LocalListener {
    /// Listens at `path`, where a server that was killed may have left its socket. One that answers stays.
    pub fn bind(path: &Path) -> io::Result<LocalListener> {
        if !path.is_absolute() || path.extension() != Some(OsStr::new(SOCKET_EXTENSION)) {
            return Err(invalid("the path of a server's socket is absolute and has its extension"));
        }
        let left = socket::connect(path).err().map(|error| error.kind());
        if left == Some(io::ErrorKind::ConnectionRefused) {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        let bound = LocalListener { path: path.to_owned(), listener };
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(bound)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn listener(&self) -> io::Result<Listener> {
        Ok(Listener::Unix(self.listener.try_clone()?))
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
