//! Every operation of clients.
#![allow(unsafe_code)] // reason: writes to objects

use std::time::Duration;

use farfork::{Client, ClientId, Mailbox, ObjectsError, Platform, Timeout};

use crate::stage::{Object, known};

const MOMENT: Timeout = Timeout::After(Duration::from_micros(300));

/// What the region gives must lie in it: its user writes all of it.
fn fill<P: Platform>(client: &Client<P>, object: Object) {
    let Ok(bytes) = client.usable_size(object) else { return };
    let info = client.region().header();
    let within = (object.addr().get() as u64).checked_sub(info.address);
    let is_inside =
        within.and_then(|at| at.checked_add(bytes as u64)).is_some_and(|end| end <= info.bytes);
    assert!(is_inside, "{object:?} of {bytes} bytes is not in the region");
    // SAFETY: it lies in the region, which is mapped, and the library says that it is the client's.
    unsafe { object.as_ptr().write_bytes(0xa5, bytes) };
}

/// Calls of all kinds by both clients. What they return is not known; they return. `at_both_ends`: also those that wait for
/// a while for the end of a mailbox that the other client has.
pub fn use_all<P: Platform + 'static>(
    clients: &mut [Client<P>; 2],
    objects: &[Object],
    at_both_ends: bool,
) {
    for (index, client) in clients.iter_mut().enumerate() {
        let known = known(client);
        allocate(client);
        for (mailbox, receives) in [(&known.there, index == 1), (&known.back, index == 0)] {
            let Ok(mailbox) = mailbox else { continue };
            if receives || at_both_ends {
                receive(client, *mailbox);
            }
            if !receives || at_both_ends {
                send(client, *mailbox, objects);
            }
        }
        link(client, objects);
        if let Ok(operation) = &known.operation {
            let _ = client.guard_call(operation, &[1; 40]);
        }
        let _ = client.region().info();
    }
    for object in objects {
        for client in clients.iter_mut() {
            let _ = client.release(*object);
            let _ = client.free(*object);
        }
    }
}

fn receive<P: Platform>(client: &mut Client<P>, mailbox: Mailbox) {
    for timeout in [Timeout::Poll, Timeout::Poll, MOMENT] {
        let Ok(received) = client.receive(mailbox, timeout) else { return };
        if let Some(object) = received {
            let _ = client.reference(object).and_then(|known| client.object(known));
            let _ = client.release(object).or_else(|_| client.free(object));
        }
    }
}

fn send<P: Platform>(client: &mut Client<P>, mailbox: Mailbox, objects: &[Object]) {
    for timeout in [Timeout::Poll, Timeout::Poll, MOMENT] {
        let Ok(object) = client.allocate(64) else { continue };
        fill(client, object);
        let sent = client.send(mailbox, object, timeout);
        if !matches!(sent, Ok(true)) {
            let _ = client.free(object);
        }
        if let Err(ObjectsError::RoleTaken { .. }) = sent {
            // Other calls wait for the role, too.
            return;
        }
    }
    for object in objects {
        let _ = client.send_root(mailbox, *object, Timeout::Poll);
    }
}

fn allocate<P: Platform>(client: &mut Client<P>) {
    for bytes in [16, 64, 500, 3000, 30_000, 70_000] {
        let objects = [(); 2].map(|()| client.allocate(bytes));
        for object in objects.into_iter().flatten() {
            fill(client, object);
            let _ = client.reference(object).and_then(|reference| client.object(reference));
            let _ = client.free(object);
        }
    }
}

fn link<P: Platform>(client: &mut Client<P>, objects: &[Object]) {
    let id = ClientId::new(client.id());
    for root in objects {
        let _ = client.usable_size(*root);
        let _ = client.transfer_writer(*root, id);
        for from in objects {
            let _ = client.unlink(*root, *from, 0);
            let _ = client.allocate_linkable(40, 2).map(|to| {
                let _ = client.link(*root, *from, 1, to);
                let _ = client.change(*root, *from, 0, Some(to));
            });
        }
        let _ = client.collect(*root);
        let _ = client.transfer_writer(*root, None);
    }
}
