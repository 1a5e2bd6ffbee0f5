//! The connections of a server: those of clients that have proved their key, and those of strangers.

use std::collections::BTreeMap;

use super::socket::Socket;

/// All connections, by number: a later one has a greater number.
#[derive(Default)]
pub struct Streams {
    all: BTreeMap<u64, Connection>,
    proven: usize,
}

struct Connection {
    stream: Socket,
    is_proven: bool,
}

impl Streams {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Adds a stranger. When there are `most` of them, the oldest is turned away: a client with the key proves
    /// it within one round trip, so that strangers that stay do not keep it out.
    pub fn add(&mut self, number: u64, stream: Socket, most: usize) {
        while self.all.len() - self.proven >= most.max(1) {
            let oldest = self.all.iter().find(|(_, one)| !one.is_proven).map(|(number, _)| *number);
            let Some(gone) = oldest.and_then(|oldest| self.all.remove(&oldest)) else { break };
            gone.stream.shut_down();
        }
        self.all.insert(number, Connection { stream, is_proven: false });
    }

    /// A stranger has proved its key. False if there are `most` such clients already, or it was turned away.
    pub fn admit(&mut self, number: u64, most: usize) -> bool {
        match self.all.get_mut(&number) {
            Some(one) if self.proven < most && !one.is_proven => {
                one.is_proven = true;
                self.proven += 1;
                true
            }
            _ => false,
        }
    }

    /// A connection has ended.
    pub fn remove(&mut self, number: u64) {
        if self.all.remove(&number).is_some_and(|gone| gone.is_proven) {
            self.proven -= 1;
        }
    }

    /// Ends all connections.
    pub fn shut_down(&self) {
        for one in self.all.values() {
            one.stream.shut_down();
        }
    }
}
