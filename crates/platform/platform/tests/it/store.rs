//! The store's contract, tested against each mechanism.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_platform::api::{
    Action, ActionPut, Activation, ActivationId, ActivationSummary, Arguments, Change, Name,
    Response, Runtimes, StartKind, Times, Version,
};
use farfork_platform::store::{
    AcceptedCall, DiskUsage, Embedded, Key, Selection, Store, StoreError, forget_old,
};
use farfork_platform::trace::Trace;
use farfork_policy::settings::Disk;
use serde_json::json;

use crate::small_disk::SmallDisk;

/// A store in a directory of its own.
struct Bed {
    directory: tempfile::TempDir,
    store: Option<Embedded>,
}

impl Bed {
    fn new() -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let store = Some(Embedded::open(&directory.path().join("db")).unwrap());
        Bed { directory, store }
    }

    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(Embedded::open(&self.path("db")).unwrap());
    }

    /// The store as a crash right now would leave it.
    fn after_a_crash(&self) -> Embedded {
        fs::copy(self.path("db"), self.path("crashed")).unwrap();
        Embedded::open(&self.path("crashed")).unwrap()
    }

    /// The same store, opened again after all is written.
    fn after_all_is_written(&self) -> Embedded {
        self.store().flush().unwrap();
        self.after_a_crash()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.directory.path()).join(name)
    }
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn change(namespace: &str, action: &str, code: Option<&str>, before: Option<&Action>) -> Change {
    let exec = code.map(|code| json!({"kind": "python", "code": code}));
    let put: ActionPut = serde_json::from_value(json!({ "exec": exec })).unwrap();
    let runtimes = Runtimes { python: "3.11".to_owned(), nodejs: None, blackbox: true };
    put.apply((&name(namespace), &name(action)), before, &runtimes, 1).unwrap()
}

fn created(store: &dyn Store, namespace: &str, action: &str) -> Action {
    let change = change(namespace, action, Some("code"), None);
    store.put_action(&change, None).unwrap();
    change.action
}

fn activation(action: &Action, id: u128, start_ms: u64) -> Activation {
    let times = Times { start_ms, end_ms: start_ms + 5, wait_ms: 1, init_ms: None };
    let response = Response::from_result(json!({ "id": id.to_string() }).into());
    Activation::new(ActivationId(id), action, response, Vec::new(), (StartKind::Warm, times))
}

fn accepted(id: u128, accepted_ms: u64) -> AcceptedCall {
    AcceptedCall {
        id: ActivationId(id),
        namespace: name("guest"),
        name: name("hello"),
        version: Version::FIRST,
        args: Arguments::from_body(b"{\"a\":1}".to_vec()).unwrap(),
        accepted_ms,
        trace: Trace::default(),
    }
}

fn ids(activations: &[ActivationSummary]) -> Vec<u128> {
    activations.iter().map(|activation| activation.activation_id.0).collect()
}

fn all() -> Selection {
    Selection { limit: 100, ..Selection::default() }
}

#[test]
fn keys_are_kept_until_they_are_revoked() {
    let mut bed = Bed::new();
    let key = |user: &str, namespace: &str| Key {
        user: user.to_owned(),
        secret_sha256: [7; 32],
        namespace: name(namespace),
        created_ms: 3,
    };
    for (user, namespace) in [("u1", "guest"), ("u2", "guest"), ("u3", "other")] {
        bed.store().put_key(&key(user, namespace)).unwrap();
    }
    bed.reopen();
    assert_eq!(bed.store().key("u2").unwrap(), Some(key("u2", "guest")));
    assert_eq!(bed.store().key("u").unwrap(), None);
    assert_eq!(bed.store().keys(None).unwrap().len(), 3);
    assert_eq!(bed.store().revoke(&name("guest")).unwrap(), 2);
    assert_eq!(bed.store().keys(None).unwrap(), [key("u3", "other")]);
    assert_eq!(bed.after_a_crash().key("u1").unwrap(), None);
}

#[test]
fn an_action_is_changed_only_from_its_current_version() {
    let bed = Bed::new();
    let first = created(bed.store(), "guest", "hello");
    let again = change("guest", "hello", Some("other"), None);
    assert!(matches!(bed.store().put_action(&again, None), Err(StoreError::Conflict)));
    let second = change("guest", "hello", None, Some(&first));
    bed.store().put_action(&second, Some(first.version)).unwrap();
    let late = change("guest", "hello", Some("late"), Some(&first));
    let refused = bed.store().put_action(&late, Some(first.version));
    assert!(matches!(refused, Err(StoreError::Conflict)));
    let (guest, hello) = (name("guest"), name("hello"));
    assert_eq!(bed.store().action(&guest, &hello).unwrap(), Some(second.action.clone()));
    // An update without code leaves it; a refused one changes nothing.
    assert_eq!(bed.store().code(&guest, &hello).unwrap().as_deref(), Some("code"));
    assert_eq!(bed.after_a_crash().action(&guest, &hello).unwrap(), Some(second.action.clone()));
    assert_eq!(bed.store().delete_action(&guest, &hello).unwrap(), Some(second.action));
    assert_eq!(bed.store().delete_action(&guest, &hello).unwrap(), None);
    assert_eq!(bed.store().code(&guest, &hello).unwrap(), None);
    let gone = change("guest", "hello", None, Some(&first));
    assert!(matches!(
        bed.store().put_action(&gone, Some(first.version)),
        Err(StoreError::Conflict)
    ));
}

#[test]
fn namespaces_see_their_own_actions_in_order() {
    let bed = Bed::new();
    // Names that are adjacent in the order of bytes.
    for (namespace, action) in
        [("a", "z"), ("a", "b"), ("a b", "c"), ("a-b", "d"), ("a", "b c"), ("aa", "e"), ("A", "f")]
    {
        created(bed.store(), namespace, action);
    }
    let listed = |namespace: &str, skip, limit| {
        let actions = bed.store().actions(&name(namespace), skip, limit).unwrap();
        actions.iter().map(|action| action.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed("a", 0, 10), ["b", "b c", "z"]);
    assert_eq!(listed("a", 1, 1), ["b c"]);
    assert_eq!(listed("a", 3, 10), Vec::<String>::new());
    assert_eq!(listed("aa", 0, 10), ["e"]);
    assert_eq!(listed("nobody", 0, 10), Vec::<String>::new());
}

#[test]
fn activations_are_listed_latest_first_per_namespace() {
    let bed = Bed::new();
    let [hello, bye] = ["hello", "bye"].map(|action| created(bed.store(), "guest", action));
    let other = created(bed.store(), "guest b", "hello");
    for (action, id, start_ms) in
        [(&hello, 1, 10), (&bye, 2, 20), (&hello, 3, 30), (&hello, 4, 30), (&other, 5, 25)]
    {
        bed.store().finish(activation(action, id, start_ms)).unwrap();
        let found = bed.store().activation(&action.namespace, ActivationId(id)).unwrap();
        assert_eq!(found.map(|found| found.start), Some(start_ms), "at once");
    }
    let guest = name("guest");
    let listed = |selection: Selection| ids(&bed.store().activations(&guest, &selection).unwrap());
    assert_eq!(listed(all()), [4, 3, 2, 1]);
    assert_eq!(listed(Selection { skip: 1, limit: 2, ..all() }), [3, 2]);
    assert_eq!(listed(Selection { since_ms: Some(20), ..all() }), [4, 3, 2]);
    assert_eq!(listed(Selection { since_ms: Some(11), upto_ms: Some(20), ..all() }), [2]);
    assert_eq!(listed(Selection { since_ms: Some(31), upto_ms: Some(20), ..all() }), []);
    let count = |selection: &Selection| bed.store().count_activations(&guest, selection).unwrap();
    let of_hello = Selection { name: Some(name("hello")), ..all() };
    let uncounted = Selection { skip: 1, limit: usize::MAX, ..all() };
    assert_eq!([&all(), &uncounted, &of_hello].map(count), [4, 3, 3]);
    assert_eq!(listed(of_hello.clone()), [4, 3, 1]);
    assert_eq!(listed(Selection { skip: 1, upto_ms: Some(30), limit: 1, ..of_hello }), [3]);
    let found = bed.store().activation(&guest, ActivationId(2)).unwrap();
    assert_eq!(found, Some(activation(&bye, 2, 20)));
    assert_eq!(bed.store().activation(&guest, ActivationId(5)).unwrap(), None, "another's");
}

#[test]
fn old_activations_are_deleted_completely() {
    let mut bed = Bed::new();
    let hello = created(bed.store(), "guest", "hello");
    for (id, start_ms) in [(1, 10), (2, 20), (3, 30)] {
        bed.store().finish(activation(&hello, id, start_ms)).unwrap();
    }
    assert_eq!(bed.store().forget(20).unwrap(), 1);
    assert_eq!(bed.store().forget(20).unwrap(), 0);
    bed.reopen();
    let guest = name("guest");
    for selection in [all(), Selection { name: Some(name("hello")), ..all() }] {
        assert_eq!(ids(&bed.store().activations(&guest, &selection).unwrap()), [3, 2]);
    }
    assert_eq!(bed.store().activation(&guest, ActivationId(1)).unwrap(), None);
}

#[tokio::test]
async fn old_activations_of_all_namespaces_are_deleted() {
    let bed = Bed::new();
    let [first, other] = ["guest", "other"].map(|owner| created(bed.store(), owner, "hello"));
    for id in 0..600 {
        let of = if id % 3 == 0 { &other } else { &first };
        bed.store().finish(activation(of, id, 10)).unwrap();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    bed.store().finish(activation(&first, 1000, now)).unwrap();
    let store: Arc<dyn Store> = Arc::new(bed.after_all_is_written());
    tokio::spawn(forget_old(Arc::clone(&store), Duration::from_secs(3600)));
    let left =
        || ["guest", "other"].map(|owner| ids(&store.activations(&name(owner), &all()).unwrap()));
    for _ in 0..500 {
        if left() == [vec![1000], vec![]] {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("there are still {:?}", left().map(|ids| ids.len()));
}

#[test]
fn an_accepted_call_survives_a_crash() {
    let bed = Bed::new();
    let hello = created(bed.store(), "guest", "hello");
    let all = |store: &dyn Store| -> Vec<AcceptedCall> {
        let entries = store.accepted().unwrap();
        entries.iter().map(|entry| store.accepted_call(entry).unwrap().unwrap()).collect()
    };
    let calls = [accepted(9, 5), accepted(1, 6)];
    calls.iter().rev().for_each(|call| bed.store().accept(call).unwrap());
    assert_eq!(all(&bed.after_a_crash()), calls, "the oldest first");
    bed.store().finish(activation(&hello, 9, 7)).unwrap();
    // Its activation is visible at once; after a crash the call is made again, or the activation is
    // there.
    assert_eq!(all(bed.store()), calls[1..]);
    assert_eq!(all(&bed.after_a_crash()), calls);
    bed.store().flush().unwrap();
    let crashed = bed.after_a_crash();
    assert_eq!(all(&crashed), calls[1..]);
    assert!(crashed.activation(&name("guest"), ActivationId(9)).unwrap().is_some());
}

#[test]
fn an_invalid_database_is_refused() {
    let bed = Bed::new();
    fs::write(bed.path("text"), "not a database").unwrap();
    let error = Embedded::open(&bed.path("text")).unwrap_err().to_string();
    assert!(error.contains("text") && error.contains("cannot open"), "{error}");
    let error = Embedded::open(&bed.path("db")).unwrap_err().to_string();
    assert!(error.contains("already open"), "{error}");
}

#[test]
fn namespaces_are_numbered_once_and_for_ever() {
    let mut bed = Bed::new();
    assert_eq!(bed.store().namespaces().unwrap(), []);
    let number = |bed: &Bed, text: &str| bed.store().number(&name(text)).unwrap();
    assert_eq!((number(&bed, "guest"), number(&bed, "ada"), number(&bed, "guest")), (0, 1, 0));
    let crashed = bed.after_a_crash();
    assert_eq!(crashed.number(&name("ada")).unwrap(), 1, "it was used already");
    bed.reopen();
    assert_eq!((number(&bed, "bob"), number(&bed, "ada")), (2, 1));
    assert_eq!(bed.store().namespaces().unwrap(), ["ada", "bob", "guest"].map(name));
}

/// Does it until it is done: after an error of the disk the store waits before it writes again.
fn soon<T>(mut attempt: impl FnMut() -> Result<T, StoreError>) -> T {
    let began = Instant::now();
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(30), "{error}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Fills the disk, and writes to the store until that fails.
fn fill(disk: &SmallDisk, store: &dyn Store) {
    disk.fill();
    let code = "x".repeat(1 << 20);
    let failed = (0..32).find_map(|index| {
        let change = change("guest", &format!("large{index}"), Some(&code), None);
        store.put_action(&change, None).err()
    });
    let words = failed.expect("the disk is full").to_string();
    assert!(words.contains("No space left on device"), "{words}");
}

#[test]
fn a_store_reads_from_a_full_disk_and_writes_when_there_is_room_again() {
    let Some(disk) = SmallDisk::mount() else { return };
    let path = disk.directory.path().join("db");
    let store = Embedded::open(&path).unwrap();
    let hello = created(&store, "guest", "hello");
    let find = |store: &Embedded, id| store.activation(&name("guest"), ActivationId(id)).unwrap();
    store.finish(activation(&hello, 1, 10)).unwrap();
    store.flush().unwrap();
    // This one is visible, but not on disk.
    store.finish(activation(&hello, 2, 20)).unwrap();
    assert!(find(&store, 2).is_some());
    fill(&disk, &store);
    assert_eq!(store.action(&name("guest"), &name("hello")).unwrap(), Some(hello.clone()));
    store.finish(activation(&hello, 3, 30)).unwrap();
    for round in 0..3 {
        for id in 1..=3 {
            assert!(find(&store, id).is_some(), "{id} in round {round}");
        }
        assert!(ids(&store.activations(&name("guest"), &all()).unwrap()).contains(&1));
        assert_eq!(store.code(&name("guest"), &name("hello")).unwrap().as_deref(), Some("code"));
        // Longer than a pause, so that the disk is tried again.
        thread::sleep(Duration::from_millis(1200));
        let _ = store.flush();
    }
    disk.free();
    soon(|| store.flush());
    soon(|| store.accept(&accepted(9, 5)));
    drop(store);
    let store = Embedded::open(&path).unwrap();
    assert_eq!(ids(&store.activations(&name("guest"), &all()).unwrap()), [3, 2, 1]);
    assert_eq!(store.accepted().unwrap().len(), 1);
}

#[test]
fn a_refused_write_to_a_full_disk_leaves_no_trace() {
    let Some(disk) = SmallDisk::mount() else { return };
    let path = disk.directory.path().join("db");
    let store = Embedded::open(&path).unwrap();
    created(&store, "guest", "hello");
    fill(&disk, &store);
    // The next attempts do not even touch the disk.
    let refused = store.accept(&accepted(9, 5)).unwrap_err().to_string();
    assert!(refused.contains("is tried again soon") && refused.contains("No space"), "{refused}");
    let stored = |store: &Embedded| store.actions(&name("guest"), 0, 100).unwrap().len();
    let before = stored(&store);
    disk.free();
    soon(|| store.flush());
    drop(store);
    let store = Embedded::open(&path).unwrap();
    assert_eq!((stored(&store), store.accepted().unwrap().len()), (before, 0));
}

/// What the namespaces `guest` and `other` take.
fn usage(store: &Embedded) -> [DiskUsage; 2] {
    let all = store.disk_usage().unwrap();
    ["guest", "other"].map(|owner| {
        let found = all.iter().find(|(namespace, _)| *namespace == name(owner));
        found.map(|(_, usage)| *usage).unwrap_or_default()
    })
}

#[test]
fn records_beyond_a_namespaces_share_go_the_oldest_first() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk { namespace_record_bytes: 64 << 10, ..Disk::default() };
    let store = Embedded::open(&directory.path().join("db")).unwrap().limited(disk);
    let [mine, others] = ["guest", "other"].map(|owner| created(&store, owner, "hello"));
    for id in 0..3 {
        store.finish(activation(&others, id, id as u64)).unwrap();
    }
    let before = {
        store.flush().unwrap();
        usage(&store)[1]
    };
    for id in 100..200 {
        let logs = vec!["x".repeat(4 << 10)];
        store.finish(Activation { logs, ..activation(&mine, id, id as u64) }).unwrap();
        if id % 7 == 0 {
            store.flush().unwrap();
        }
    }
    store.flush().unwrap();
    let left = ids(&store.activations(&name("guest"), &all()).unwrap());
    assert!((12..=16).contains(&left.len()), "{left:?}");
    assert!(left.iter().copied().eq((200 - left.len() as u128..200).rev()), "{left:?}");
    assert!(store.activation(&name("guest"), ActivationId(100)).unwrap().is_none());
    let [taken, of_other] = usage(&store);
    assert!((48 << 10..=64 << 10).contains(&taken.record_bytes), "{taken:?}");
    assert_eq!(of_other, before);
    assert_eq!(ids(&store.activations(&name("other"), &all()).unwrap()), [2, 1, 0]);
    while store.forget(1000).unwrap() > 0 {}
    assert_eq!(usage(&store).map(|usage| usage.record_bytes), [0, 0]);
}

#[test]
fn a_namespace_deploys_no_more_than_its_share_and_others_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk { namespace_code_bytes: 100_000, ..Disk::default() };
    let store = Embedded::open(&directory.path().join("db")).unwrap().limited(disk);
    let code = "x".repeat(40_000);
    let deploy = |owner: &str, action: &str, code: &str, before: Option<&Action>| {
        let change = change(owner, action, Some(code), before);
        store.put_action(&change, before.map(|before| before.version)).map(|()| change.action)
    };
    let first = deploy("guest", "first", &code, None).unwrap();
    deploy("guest", "second", &code, None).unwrap();
    let taken = usage(&store)[0].code_bytes;
    assert!((80_000..85_000).contains(&taken), "{taken}");
    let refused = deploy("guest", "third", &code, None).unwrap_err();
    assert!(matches!(refused, StoreError::TooMuchCode { bytes: 120_000.., most: 100_000 }));
    assert_eq!(store.action(&name("guest"), &name("third")).unwrap(), None);
    assert_eq!(usage(&store)[0].code_bytes, taken);
    deploy("other", "third", &code, None).unwrap();
    // A new version takes the place of the old one.
    let first = deploy("guest", "first", &"y".repeat(50_000), Some(&first)).unwrap();
    assert!(deploy("guest", "first", &"y".repeat(70_000), Some(&first)).is_err());
    store.delete_action(&name("guest"), &name("second")).unwrap();
    deploy("guest", "third", &code, None).unwrap();
    for action in ["first", "third"] {
        store.delete_action(&name("guest"), &name(action)).unwrap();
    }
    assert_eq!(usage(&store)[0], DiskUsage::default());
}

#[test]
fn a_store_opens_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount() else { return };
    let path = disk.directory.path().join("db");
    let store = Embedded::open(&path).unwrap();
    let hello = created(&store, "guest", "hello");
    fill(&disk, &store);
    drop(store);
    let store = Embedded::open(&path).unwrap();
    assert_eq!(store.action(&name("guest"), &name("hello")).unwrap(), Some(hello));
    disk.free();
    soon(|| store.accept(&accepted(9, 5)));
}
