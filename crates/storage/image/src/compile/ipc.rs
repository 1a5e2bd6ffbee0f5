//! The ops that make semaphores and message queues of System V, with what is in them.

use farfork_plan::{Op, What, ipc, nr};

use super::arena::Arena;
use crate::model::{MessageQueue, Model, SemaphoreSet, SystemVIdentity};

/// Commands of `shmctl`, `semctl` and `msgctl`.
pub const IPC_SET: u64 = 1;
const SETALL: u64 = 17;
/// Words of the longest of `shmid64_ds`, `semid64_ds` and `msqid64_ds`, and where the last has
/// its capacity.
const DESCRIPTION_WORDS: usize = 15;
const CAPACITY_WORD: usize = 11;

/// Compiles them; it is for one process to make them, before there are others.
pub fn ops(model: &Model, arena: &mut Arena) -> Vec<Op> {
    let mut compiler = Compiler { arena, ops: Vec::new(), detail: 0 };
    for set in &model.semaphores {
        compiler.semaphores(set);
    }
    for queue in &model.queues {
        compiler.queue(queue);
    }
    compiler.ops
}

/// What `IPC_SET` takes for objects of any kind: `ipc64_perm`, and what only a queue has.
pub fn description(mode: u32, owner: (u32, u32), capacity: u64) -> [u64; DESCRIPTION_WORDS] {
    let mut words = [0; DESCRIPTION_WORDS];
    words[0] = u64::from(owner.0) << 32; // after the key
    words[1] = owner.1.into();
    words[2] = u64::from(mode) << 32; // after the creator
    words[CAPACITY_WORD] = capacity;
    words
}

struct Compiler<'a> {
    arena: &'a mut Arena,
    ops: Vec<Op>,
    detail: u32,
}

impl Compiler<'_> {
    fn push(&mut self, number: u32, args: &[u64]) {
        self.ops.push(Op::new(What::SystemV, number, args).about(self.detail));
    }

    fn make(&mut self, kind: u64, identity: &SystemVIdentity, size: u64) -> u64 {
        let (id, key, creator) = (identity.id.into(), identity.key as u32, identity.creator);
        let args = [kind, id, key.into(), size, creator.0.into(), creator.1.into()];
        self.push(nr::MAKE_IPC, &args);
        id
    }

    fn semaphores(&mut self, set: &SemaphoreSet) {
        let identity = &set.identity;
        self.detail = self.arena.detail(&format!("semaphore set {} of System V", identity.id));
        let id = self.make(ipc::SEMAPHORES, identity, set.values.len() as u64);
        if set.was_used {
            // To wait for the zero that they all begin with: struct sembuf.
            let wait = [0u16, 0, libc::IPC_NOWAIT as u16].map(u16::to_le_bytes);
            let wait = self.arena.put(wait.as_flattened(), 8);
            self.push(libc::SYS_semop as u32, &[id, wait, 1]);
        }
        let values: Vec<u8> = set.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let values = self.arena.put(&values, 8);
        self.push(libc::SYS_semctl as u32, &[id, 0, SETALL, values]);
        let description = self.arena.words(&description(identity.mode, identity.owner, 0));
        self.push(libc::SYS_semctl as u32, &[id, 0, IPC_SET, description]);
    }

    fn queue(&mut self, queue: &MessageQueue) {
        let identity = &queue.identity;
        self.detail = self.arena.detail(&format!("message queue {} of System V", identity.id));
        let id = self.make(ipc::QUEUE, identity, 0);
        let waiting = queue.messages.iter().map(|message| message.bytes.len() as u64).sum();
        // More may wait in a queue than it has room for since that was made less.
        self.describe(id, identity, queue.capacity.max(waiting));
        for message in &queue.messages {
            let bytes = [&message.kind.to_le_bytes()[..], &message.bytes].concat();
            let args = [self.arena.put(&bytes, 8), message.bytes.len() as u64];
            let nowait = libc::IPC_NOWAIT as u64;
            self.push(libc::SYS_msgsnd as u32, &[id, args[0], args[1], nowait]);
        }
        if queue.capacity < waiting {
            self.describe(id, identity, queue.capacity);
        }
    }

    fn describe(&mut self, id: u64, identity: &SystemVIdentity, capacity: u64) {
        let description = description(identity.mode, identity.owner, capacity);
        let description = self.arena.words(&description);
        self.push(libc::SYS_msgctl as u32, &[id, IPC_SET, description]);
    }
}
