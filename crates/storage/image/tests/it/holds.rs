//! Images that other pools count on.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farfork_image::catalog::{Catalog, ImageName, discard};
use farfork_image::error::ImageError;
use farfork_image::holds::{self, HoldError};
use farfork_image::tier::{FarNode, retier};
use farfork_pool::{Pool, PoolError, failpoint};
use farfork_types::{CHUNK_BYTES, Cid};

use crate::common::{model, publish};

struct Scene {
    directory: tempfile::TempDir,
    pool: Pool,
    cid: Cid,
}

fn scene() -> Scene {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(&directory.path().join("pool"), 24 * CHUNK_BYTES).unwrap();
    let cid = publish(&pool, &model());
    Scene { directory, pool, cid }
}

impl Scene {
    fn again(&self) -> Pool {
        Pool::open(&self.directory.path().join("pool")).unwrap()
    }

    /// Something that another process does at a step of this thread. It must not be done before the
    /// thread goes on, or must not matter.
    fn meanwhile<T: Send + 'static>(
        &self,
        steps: u64,
        act: impl FnOnce(Pool, Cid) -> T + Send + 'static,
    ) -> mpsc::Receiver<JoinHandle<T>> {
        let (handle, given) = mpsc::channel();
        let (pool, cid) = (self.again(), self.cid);
        let event = move || {
            let acting = thread::spawn(move || act(pool, cid));
            let begun = std::time::Instant::now();
            while !acting.is_finished() && begun.elapsed() < Duration::from_millis(200) {
                thread::sleep(Duration::from_millis(1));
            }
            handle.send(acting).unwrap();
        };
        failpoint::happen_after(steps, Some(Box::new(event)));
        given
    }
}

#[test]
fn an_image_is_held_or_gone() {
    let scene = scene();
    let holding = scene.meanwhile(0, |pool, cid| holds::hold(&pool, cid, "other"));
    assert!(discard(&scene.pool, scene.cid).unwrap(), "it has no name");
    let held = holding.recv().expect("a step before the removal").join().unwrap();
    let is_refused = matches!(held, Err(HoldError::Pool(PoolError::NoImage { .. })));
    assert!(is_refused, "{held:?}: the image is gone");
    assert_eq!(Catalog::of(&scene.pool).list().unwrap(), []);
}

#[test]
fn an_image_with_a_name_stays() {
    let scene = scene();
    let name: ImageName = "a/b".parse().unwrap();
    holds::hold(&scene.pool, scene.cid, "other").unwrap();
    assert!(!discard(&scene.pool, scene.cid).unwrap(), "it is held");
    Catalog::of(&scene.pool).set(&name, scene.cid).unwrap();
    assert!(holds::release(&scene.pool, scene.cid, "other").unwrap());
    assert!(!holds::release(&scene.pool, scene.cid, "other").unwrap(), "twice");
    assert!(!discard(&scene.pool, scene.cid).unwrap(), "it has a name");
    Catalog::of(&scene.pool).remove(&name).unwrap();
    assert!(discard(&scene.pool, scene.cid).unwrap());
    assert!(discard(&scene.pool, scene.cid).unwrap(), "it is gone already");
}

/// Its bytes would be nowhere: the other pool has holes where it counts on this one.
#[test]
fn nothing_of_a_held_image_moves_elsewhere() {
    let scene = scene();
    let far = Pool::create(&scene.directory.path().join("far"), 24 * CHUNK_BYTES).unwrap();
    let file = scene.pool.find(scene.cid).unwrap();
    farfork_image::tier::pull(&far, Some("amy"), &file, &mut |_, _| ()).unwrap();
    let node =
        FarNode { address: "far:1".to_owned(), key: "/key".into(), tls: None, deadline_ms: 5000 };
    let move_all = || {
        let there = far.find(scene.cid).unwrap().file().try_clone().unwrap();
        let file = scene.pool.find(scene.cid).unwrap().with_far_file(there).unwrap();
        let chunks = BTreeSet::from([0]);
        retier(&scene.pool, &file, &chunks, &node, &mut |_, _| ())
    };
    holds::hold(&scene.pool, scene.cid, "other").unwrap();
    let moved = move_all();
    assert!(matches!(moved, Err(ImageError::Held { .. })), "{moved:?}");
    assert!(scene.pool.find(scene.cid).unwrap().far().is_none());
    // A hold that comes while parts are compared.
    holds::release(&scene.pool, scene.cid, "other").unwrap();
    let holding = scene.meanwhile(0, |pool, cid| holds::hold(&pool, cid, "other"));
    let moved = move_all();
    let held = holding.recv().expect("a step").join().unwrap();
    assert!(moved.is_err() != held.is_err(), "one of them: {moved:?}, {held:?}");
    holds::release(&scene.pool, scene.cid, "other").unwrap();
    // And one that comes after.
    let _ = move_all();
    let held = holds::hold(&scene.pool, scene.cid, "other");
    assert!(matches!(held, Err(HoldError::FarParts { .. })), "{held:?}");
}
