//! A region without memory, at each step of each operation.

use std::sync::Arc;

use farfork::{Client, Code, ObjectsError, Region, Timeout};
use libtest_mimic::Failed;

use crate::stage::{BYTES, Object, place};

/// Slots of 64 bytes that are left for the operations.
const MOST_LEFT: usize = 200;

pub fn at_each_step() -> Result<(), Failed> {
    let mut refused = [0; 5];
    for left in (0..8).chain((8..MOST_LEFT).step_by(17)) {
        let (_directory, path) = place();
        Region::create(&path, BYTES)?;
        let mut client = Client::open(&path)?;
        let mailbox = client.mailbox("m", 4)?;
        let mut objects: Vec<Object> = std::iter::from_fn(|| client.allocate(64).ok()).collect();
        for object in objects.drain(objects.len() - left..) {
            client.free(object)?;
        }
        let before = client.region().check()?;
        let results = operations(&mut client, mailbox, objects[0]);
        for (refused, result) in refused.iter_mut().zip(results) {
            match result {
                Ok(()) => {}
                Err(ObjectsError::Full | ObjectsError::NoRun { .. }) => *refused += 1,
                Err(other) => return Err(format!("with {left} slots left: {other}").into()),
            }
        }
        let after = client.region().check()?;
        assert!(after.is_clean(), "{after:?}");
        assert_eq!(before.bytes_free, after.bytes_free, "with {left} slots left");
        objects.into_iter().try_for_each(|object| client.free(object))?;
        let check = client.region().check()?;
        let all = client.allocate(check.bytes as usize)?;
        client.free(all)?;
    }
    println!("refused: {refused:?}");
    assert!(refused.iter().all(|count| *count > 0), "{refused:?}");
    Ok(())
}

/// Each leaves what was there before, whether it works or not.
fn operations(
    client: &mut Client,
    mailbox: farfork::Mailbox,
    any: Object,
) -> [Result<(), ObjectsError>; 5] {
    let allocated = client.allocate(60).and_then(|object| client.free(object));
    let run = client.allocate(70_000).and_then(|object| client.free(object));
    [allocated, run, structure(client), shared(client, mailbox), guarded(client, any)]
}

fn structure(client: &mut Client) -> Result<(), ObjectsError> {
    let root = client.allocate_linkable(40, 2)?;
    let linked = client.allocate_linkable(40, 2).and_then(|to| client.link(root, root, 0, to));
    client.free(root)?;
    linked
}

fn shared(client: &mut Client, mailbox: farfork::Mailbox) -> Result<(), ObjectsError> {
    let root = client.allocate_linkable(40, 2)?;
    match client.send_root(mailbox, root, Timeout::Poll) {
        Ok(_) => {}
        Err(error) => {
            client.free(root)?;
            return Err(error);
        }
    }
    assert_eq!(client.receive(mailbox, Timeout::Poll)?, Some(root));
    client.release(root)?;
    client.release(root)
}

fn guarded(client: &mut Client, any: Object) -> Result<(), ObjectsError> {
    let code: Code = Arc::new(|guard, _| {
        let allocated = guard.allocate(64).and_then(|object| guard.free(object));
        i32::from(allocated.is_err())
    });
    let operation = client.region().guard_register("work", 1, code)?;
    let failed = client.guard_call(&operation, &[])?;
    assert!(client.usable_size(any).is_ok());
    if failed == 0 { Ok(()) } else { Err(ObjectsError::Full) }
}
