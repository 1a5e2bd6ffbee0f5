//! A child that goes on with its parent's handle.

use std::sync::Arc;

use farfork::{Client, Code, Region, Timeout};

use crate::child::{self, End};
use crate::objects::{number, set_number};
use crate::stage::{demand, words};

/// Parent and child pass an object to and fro by the handle of both.
pub fn becomes_a_client() -> Result<(), String> {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    Region::create(&path, 1 << 20).map_err(words)?;
    let mut client = Client::open(&path).map_err(words)?;
    let (down, up) = (client.mailbox("down", 4), client.mailbox("up", 4));
    let (down, up) = (down.map_err(words)?, up.map_err(words)?);
    let code: Code = Arc::new(|guard, _| i32::from(guard.lock(1).is_err()));
    let operation = client.region().guard_register("lock", 1, code).map_err(words)?;
    let kept = client.allocate(64).map_err(words)?;
    set_number(kept, 5);
    client.after_fork().map_err(words)?;
    demand(client.id() == 1, || "the parent became another client".to_owned())?;
    let child = child::start(|| {
        client.after_fork().expect("a client");
        client.after_fork().expect("the same client");
        assert_eq!(client.id(), 2, "an id of its own");
        assert!(client.free(kept).is_err(), "it is the parent's");
        assert_eq!(number(kept), 5, "it lies at the same address");
        let object = client.receive(down, Timeout::Never).expect("a receiver");
        let object = object.expect("a message");
        set_number(object, number(object) + 1);
        assert!(client.send(up, object, Timeout::Never).expect("a sender"));
        assert_eq!(client.guard_call(&operation, &[]).expect("called"), 0);
    });
    let object = client.allocate(64).map_err(words)?;
    set_number(object, 41);
    demand(client.send(down, object, Timeout::Never).map_err(words)?, || "no room".to_owned())?;
    let back = client.receive(up, Timeout::Never).map_err(words)?.ok_or("no message")?;
    demand(back == object && number(back) == 42, || format!("{} came back", number(back)))?;
    demand(child::end(child)? == End::Finished, || "the child was killed".to_owned())?;
    let check = client.region().check().map_err(words)?;
    let is_right = check.is_clean() && (check.owned, check.clients_recovered) == (2, 1);
    demand(is_right, || format!("{check:?}"))
}
