//! Addresses that a clone is going to take.

use std::io;
use std::os::fd::AsFd;

use farfork_image::compile::Supplied;
use farfork_image::model::{Model, OpenFile, SocketFile};
use farfork_sys::socket_file;

/// Removes the socket file that a dead process has left where `supplied` is going to listen. A probe shows
/// whether a process still listens there.
pub fn clear(model: &Model, supplied: Supplied) {
    let Some(OpenFile::Socket(socket)) = model.files.get(supplied.file as usize) else { return };
    // If it stays, the clone fails: the address is in use.
    let _ = socket.file.as_ref().map(remove);
}

/// Works with the agent's rights in directories that others may write to. So only a socket of the parent's
/// user is removed, and no link is followed.
fn remove(file: &SocketFile) -> io::Result<bool> {
    let (Some(directory), Some(name)) = (file.place.parent(), file.place.file_name()) else {
        return Ok(false);
    };
    let directory = socket_file::directory(directory)?;
    socket_file::remove_dead(directory.as_fd(), name, Some(file.user))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_image::model::{Descriptor, Member, Socket};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    fn listening_at(place: &Path, user: u32) -> Model {
        let file = SocketFile { place: place.to_owned(), user, ..SocketFile::default() };
        let socket = Socket { file: Some(file), ..Socket::default() };
        let descriptors = vec![Descriptor { fd: 7, file: 0, cloexec: false }];
        let members = vec![Member { descriptors, ..Member::default() }];
        Model { members, files: vec![OpenFile::Socket(Box::new(socket))], ..Model::default() }
    }

    const SOCKET: Supplied = Supplied { member: 0, fd: 7, file: 0 };

    #[test]
    fn only_sockets_of_dead_processes_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().canonicalize().unwrap();
        let path = directory.join("socket");
        let own = rustix::process::geteuid().as_raw();
        let model = listening_at(&path, own);
        fs::write(&path, "a plain file").unwrap();
        clear(&model, SOCKET);
        assert!(path.exists(), "a file that is not a socket");
        fs::remove_file(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        clear(&model, SOCKET);
        assert!(path.exists());
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "the listener got a connection");
        fs::remove_file(&path).unwrap();
        // Not what the listener leaves: a process that another test has just forked may have it, too.
        mknodat(CWD, &path, FileType::Socket, Mode::RUSR, 0).unwrap();
        clear(&listening_at(&path, own + 1), SOCKET);
        assert!(path.exists(), "a socket of another user");
        let link = directory.join("link");
        symlink(&directory, &link).unwrap();
        clear(&listening_at(&link.join("socket"), own), SOCKET);
        assert!(path.exists(), "a symbolic link led there");
        clear(&model, SOCKET);
        assert!(!path.exists());
    }
}
