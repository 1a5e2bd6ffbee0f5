//! A man in the middle: a socket that carries frames to a server and changes what a test wants changed.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

/// What happens to the messages of one direction. Each is a length and as many bytes, after the handshake.
pub type Change = Box<dyn FnMut(Vec<u8>) -> Vec<Vec<u8>> + Send>;

/// Bytes of hello and handshake message, and of answer and handshake message.
const TO_SERVER: usize = 32 + 48;
const TO_CLIENT: usize = 16 + 48;

/// Listens, and carries one connection.
pub struct Proxy {
    pub address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// Carries the first connection to `server`. The changes get whole messages with their lengths.
    pub fn start(server: SocketAddr, requests: Change, answers: Change) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let carrier = std::thread::spawn(move || {
            let client = listener.accept().unwrap().0;
            let server = TcpStream::connect(server).unwrap();
            let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let up = std::thread::spawn(move || carry(from, to, TO_SERVER, requests));
            carry(server, client, TO_CLIENT, answers);
            up.join().unwrap();
        });
        Proxy { address, threads: vec![carrier] }
    }

    /// Waits for the connection's end.
    pub fn join(self) {
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Passes everything on.
pub fn unchanged() -> Change {
    Box::new(|message| vec![message])
}

fn carry(mut from: TcpStream, mut to: TcpStream, handshake: usize, mut change: Change) {
    let mut bytes = vec![0; handshake];
    let mut open = from.read_exact(&mut bytes).is_ok() && to.write_all(&bytes).is_ok();
    while open {
        let mut length = [0; 4];
        if from.read_exact(&mut length).is_err() {
            break;
        }
        let mut message = length.to_vec();
        message.resize(4 + u32::from_le_bytes(length) as usize, 0);
        if from.read_exact(&mut message[4..]).is_err() {
            break;
        }
        let mut changed = change(message).into_iter();
        open = changed.all(|message| to.write_all(&message).is_ok());
    }
    // A read that ended for one direction ends the other.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
