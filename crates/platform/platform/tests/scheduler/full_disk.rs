//! A store whose disk fails for a while.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use farfork_platform::api::{
    Action, Activation, ActivationId, ActivationSummary, Change, Code, Name, Version,
};
use farfork_platform::scheduler::Caller;
use farfork_platform::store::{
    AcceptedCall, AcceptedEntry, Embedded, Key, Selection, Store, StoreError,
};
use farfork_policy::Settings;
use serde_json::json;
use tokio::time::{Duration, sleep};

use crate::nodes::TestNodes;
use crate::small_disk::SmallDisk;
use crate::world::{World, answered, change, kind};

/// A store whose first flushes fail.
#[derive(Debug)]
struct FullDisk {
    store: Embedded,
    failing: AtomicU32,
    flushed: AtomicU32,
    /// How often an action's code was read.
    codes: AtomicU32,
    /// Whether records of activations are refused.
    is_lossy: AtomicBool,
}

impl FullDisk {
    fn new(directory: &Path, failing: u32) -> FullDisk {
        let store = Embedded::open(&directory.join("db")).unwrap();
        let (flushed, codes, is_lossy) = Default::default();
        FullDisk { store, failing: AtomicU32::new(failing), flushed, codes, is_lossy }
    }
}

impl Store for FullDisk {
    fn flush(&self) -> Result<(), StoreError> {
        let less = |left: u32| left.checked_sub(1);
        if self.failing.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok() {
            return Err(StoreError::Conflict);
        }
        self.flushed.fetch_add(1, Ordering::AcqRel);
        self.store.flush()
    }

    fn number(&self, namespace: &Name) -> Result<u32, StoreError> {
        self.store.number(namespace)
    }

    fn namespaces(&self) -> Result<Vec<Name>, StoreError> {
        self.store.namespaces()
    }

    fn put_key(&self, key: &Key) -> Result<(), StoreError> {
        self.store.put_key(key)
    }

    fn key(&self, user: &str) -> Result<Option<Key>, StoreError> {
        self.store.key(user)
    }

    fn keys(&self, namespace: Option<&Name>) -> Result<Vec<Key>, StoreError> {
        self.store.keys(namespace)
    }

    fn revoke(&self, namespace: &Name) -> Result<usize, StoreError> {
        self.store.revoke(namespace)
    }

    fn action(&self, namespace: &Name, name: &Name) -> Result<Option<Action>, StoreError> {
        self.store.action(namespace, name)
    }

    fn actions(
        &self,
        namespace: &Name,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        self.store.actions(namespace, skip, limit)
    }

    fn code(&self, namespace: &Name, name: &Name) -> Result<Option<Code>, StoreError> {
        self.codes.fetch_add(1, Ordering::AcqRel);
        self.store.code(namespace, name)
    }

    fn put_action(&self, change: &Change, before: Option<Version>) -> Result<(), StoreError> {
        self.store.put_action(change, before)
    }

    fn delete_action(&self, namespace: &Name, name: &Name) -> Result<Option<Action>, StoreError> {
        self.store.delete_action(namespace, name)
    }

    fn accept(&self, call: &AcceptedCall) -> Result<(), StoreError> {
        self.store.accept(call)
    }

    fn accepted_call(&self, entry: &AcceptedEntry) -> Result<Option<AcceptedCall>, StoreError> {
        self.store.accepted_call(entry)
    }
    fn accepted(&self) -> Result<Vec<AcceptedEntry>, StoreError> {
        self.store.accepted()
    }

    fn finish(&self, activation: Activation) -> Result<(), StoreError> {
        if self.is_lossy.load(Ordering::Acquire) {
            return Err(StoreError::Conflict);
        }
        self.store.finish(activation)
    }

    fn activation(
        &self,
        namespace: &Name,
        id: ActivationId,
    ) -> Result<Option<Activation>, StoreError> {
        self.store.activation(namespace, id)
    }

    fn activations(
        &self,
        namespace: &Name,
        selection: &Selection,
    ) -> Result<Vec<ActivationSummary>, StoreError> {
        self.store.activations(namespace, selection)
    }

    fn count_activations(
        &self,
        namespace: &Name,
        selection: &Selection,
    ) -> Result<usize, StoreError> {
        self.store.count_activations(namespace, selection)
    }

    fn forget(&self, before_ms: u64) -> Result<usize, StoreError> {
        self.store.forget(before_ms)
    }
}

/// No further call triggers a retry.
#[tokio::test(start_paused = true)]
async fn activations_are_flushed_when_the_disk_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FullDisk::new(directory.path(), 3));
    let nodes = TestNodes::new(&[("node1", 1100)]);
    let world = World::on(nodes, Arc::clone(&disk) as _, directory, Settings::default());
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 1).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(disk.failing.load(Ordering::Acquire), 0);
    assert_eq!(disk.flushed.load(Ordering::Acquire), 1, "once, and then there is nothing to write");
}

#[tokio::test(start_paused = true)]
async fn code_is_kept_only_while_instances_load_it() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FullDisk::new(directory.path(), 0));
    let nodes = TestNodes::new(&[("node1", 1100)]);
    let world = World::on(nodes, Arc::clone(&disk) as _, directory, Settings::default());
    let action = world.action("a", "code", json!({}));
    let codes = || disk.codes.load(Ordering::Acquire);
    // Instances that start at once share it.
    let calls = [(); 3].map(|()| world.begin(&action, json!({})));
    for call in calls {
        assert_eq!(kind(&answered(call).await), "cold");
    }
    assert_eq!(codes(), 1);
    assert_eq!(kind(&world.call(&action, json!({})).await), "warm");
    assert_eq!(codes(), 1);
    // All of them end, and the next begins anew.
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(kind(&world.call(&action, json!({})).await), "cold");
    assert_eq!(codes(), 2);
}

/// A caller has its answer even if it cannot be read later.
#[tokio::test(start_paused = true)]
async fn a_call_whose_record_is_lost_is_answered_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(FullDisk::new(directory.path(), 0));
    let nodes = TestNodes::new(&[("node1", 1100)]);
    let world = World::on(nodes, Arc::clone(&disk) as _, directory, Settings::default());
    let action = world.action("a", "code", json!({}));
    let lost = || {
        let text = world.platform.metrics();
        let line = text.lines().find(|line| line.starts_with("farfork_activations_lost_total "));
        line.unwrap().to_owned()
    };
    world.calls(&action, 1).await;
    assert_eq!(lost(), "farfork_activations_lost_total 0");
    disk.is_lossy.store(true, Ordering::Release);
    world.calls(&action, 2).await;
    assert_eq!(lost(), "farfork_activations_lost_total 2");
    disk.is_lossy.store(false, Ordering::Release);
    let done = world.call(&action, json!({})).await;
    let found = disk.activation(&done.namespace, done.activation_id).unwrap();
    assert!(found.is_some());
    assert_eq!(lost(), "farfork_activations_lost_total 2");
}

#[tokio::test]
async fn calls_go_on_while_the_disk_is_full() {
    let Some(disk) = SmallDisk::mount() else { return };
    let state = tempfile::tempdir_in(disk.directory.path()).unwrap();
    let store = Arc::new(Embedded::open(&state.path().join("db")).unwrap());
    let nodes = TestNodes::new(&[("node1", 1100)]);
    let world = World::on(nodes, Arc::clone(&store) as _, state, Settings::default());
    let action = world.action("a", "code", json!({}));
    world.calls(&action, 1).await;
    store.flush().unwrap();
    disk.fill();
    let fails = || store.put_action(&large(&action), Some(action.version)).is_err();
    assert!(fails() && fails(), "the disk is full");
    let mut made = Vec::new();
    for _ in 0..10 {
        let found = store.action(&action.namespace, &action.name).unwrap().unwrap();
        let done = world.call(&found, json!({})).await;
        assert_eq!(kind(&done), "warm");
        let kept = store.activation(&done.namespace, done.activation_id).unwrap();
        assert_eq!(kept.as_ref(), Some(&done));
        made.push(done.activation_id);
        sleep(Duration::from_millis(200)).await;
    }
    let text = world.platform.metrics();
    for kind in ["code", "records"] {
        let series =
            format!("farfork_namespace_disk_bytes{{namespace=\"guest\",kind=\"{kind}\"}} ");
        let bytes = text.lines().find_map(|line| line.strip_prefix(&*series));
        assert!(bytes.unwrap().parse::<u64>().unwrap() > 0, "{kind}");
    }
    disk.free();
    // No call asks for it, and all records get to the disk.
    let is_stored = |id| {
        let copy = disk.directory.path().join("copy");
        std::fs::copy(world.directory.path().join("db"), &copy).unwrap();
        let copied = Embedded::open(&copy).unwrap();
        copied.activation(&action.namespace, id).unwrap().is_some()
    };
    for _ in 0..150 {
        if made.iter().all(|id| is_stored(*id)) {
            return;
        }
        sleep(Duration::from_millis(200)).await;
    }
    panic!("the records are not stored");
}

/// A version with more code than a full disk takes.
fn large(before: &Action) -> Change {
    let put = json!({"exec": {"kind": "python", "code": "x".repeat(1 << 20)}});
    change(Some(before), before.name.as_str(), put, 2)
}
