//! Addresses that a clone is going to take.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;

use farfork_image::model::{Model, OpenFile};

/// Removes the file that a dead process has left where the socket behind descriptor `fd` is going
/// to listen: whoever listens there is asked first, and answers if he lives.
pub fn clear(model: &Model, fd: u32) {
    let file = model.root().descriptors.iter().find(|descriptor| descriptor.fd == fd);
    let Some(OpenFile::Socket(socket)) = file.and_then(|own| model.files.get(own.file as usize))
    else {
        return;
    };
    let Some(path) = socket.path() else { return };
    let path = model.root().process.cwd.join(OsStr::from_bytes(path));
    let answer = UnixDatagram::unbound().and_then(|socket| socket.connect(&path));
    if answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
        // If it stays, the clone says that the address is in use.
        let _ = fs::remove_file(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_image::model::{Descriptor, Member, Socket};
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_what_the_dead_have_left_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let name = [&(libc::AF_UNIX as u16).to_le_bytes()[..], b"socket\0"].concat();
        let family = libc::AF_UNIX as u32;
        let socket = Socket { family, name: Some(name), ..Socket::default() };
        let descriptors = vec![Descriptor { fd: 7, file: 0, cloexec: false }];
        let mut member = Member { descriptors, ..Member::default() };
        member.process.cwd = directory.path().to_owned();
        let mut model = Model { members: vec![member], ..Model::default() };
        model.files = vec![OpenFile::Socket(Box::new(socket))];
        let listener = UnixListener::bind(&path).unwrap();
        clear(&model, 7);
        assert!(path.exists());
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "the living has a connection");
        drop(listener);
        clear(&model, 7);
        assert!(!path.exists());
    }
}
