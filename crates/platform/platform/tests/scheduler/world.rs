//! A platform on simulated nodes.

use std::fs::{self, File, Permissions};
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use farfork_platform::api::{
    Action, ActionPut, Activation, ActivationId, Arguments, Change, Name, Outcome, Runtimes,
};
use farfork_platform::confine::Folders;
use farfork_platform::memory::RequestMemory;
use farfork_platform::runtimes::OtherRuntimes;
use farfork_platform::scheduler::{Advisor, Call, Caller, JournalFile, Platform};
use farfork_platform::store::{Embedded, Store};
use farfork_platform::trace::Trace;
use farfork_policy::{Settings, journal};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot::Receiver;
use tokio::time::{sleep, timeout};

use crate::nodes::TestNodes;

pub struct World {
    pub memory: Arc<RequestMemory>,
    pub nodes: TestNodes,
    pub store: Arc<dyn Store>,
    pub platform: Arc<Platform>,
    pub directory: tempfile::TempDir,
}

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A change of an action by a client.
pub fn change(before: Option<&Action>, action: &str, put: Value, now_ms: u64) -> Change {
    let put: ActionPut = serde_json::from_value(put).unwrap();
    let runtimes = Runtimes { python: "3.11".to_owned(), nodejs: None, blackbox: true };
    put.apply((&name("guest"), &name(action)), before, &runtimes, now_ms).unwrap()
}

impl World {
    /// Two nodes with room for four instances of the default size each.
    pub fn new() -> World {
        World::with(TestNodes::new(&[("node1", 1100), ("node2", 1100)]), Settings::default())
    }

    pub fn with(nodes: TestNodes, settings: Settings) -> World {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Embedded::open(&directory.path().join("db")).unwrap());
        World::on(nodes, store, directory, settings)
    }

    pub fn on(
        nodes: TestNodes,
        store: Arc<dyn Store>,
        directory: tempfile::TempDir,
        settings: Settings,
    ) -> World {
        let journal = JournalFile::open(&directory.path().join("journal")).unwrap();
        let advisor = Arc::new(Advisor::new(settings, Some(journal)).unwrap());
        // Functions have to traverse it.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o711)).unwrap();
        let folders = Folders::open(directory.path().join("code")).unwrap();
        let nodes_of_it = Arc::new(nodes.nodes.clone());
        let others = OtherRuntimes::default();
        let memory = RequestMemory::new(settings.requests);
        let platform =
            Platform::begin(store.clone(), nodes_of_it, advisor, folders, others, memory.clone())
                .unwrap();
        World { memory, nodes, store, platform, directory }
    }

    /// An action with this code, and with `more` of a client's document.
    pub fn action(&self, name: &str, code: &str, more: Value) -> Action {
        let mut put = json!({"exec": {"kind": "python", "code": code}});
        put.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let change = change(None, name, put, 1);
        self.store.put_action(&change, None).unwrap();
        change.action
    }

    /// A stored action of another namespace.
    pub fn foreign_action(&self, namespace: &str) -> Action {
        let mut change = change(None, "a", json!({"exec": {"kind": "python", "code": "code"}}), 1);
        change.action.namespace = name(namespace);
        self.store.put_action(&change, None).unwrap();
        change.action
    }

    pub fn begin(&self, action: &Action, args: Value) -> Receiver<Activation> {
        let Value::Object(args) = args else { panic!("no object: {args}") };
        let place = self.platform.admit(&action.namespace).unwrap();
        self.platform.call(call(action, args), place)
    }

    pub async fn call(&self, action: &Action, args: Value) -> Activation {
        answered(self.begin(action, args)).await
    }

    /// Sequential calls, all of which succeed.
    pub async fn calls(&self, action: &Action, count: usize) {
        for _ in 0..count {
            let made = self.call(action, json!({})).await;
            assert_eq!(made.response.status, Outcome::Success, "{made:?}");
        }
    }

    /// Replays the journal without differences; returns the number of decisions.
    pub fn replay(&self) -> usize {
        let file = File::open(self.directory.path().join("journal")).unwrap();
        let replayed = journal::replay(BufReader::new(file), None).unwrap();
        assert_eq!((replayed.differences, replayed.missing), (Vec::new(), 0));
        replayed.decisions
    }
}

pub fn call(action: &Action, args: Map<String, Value>) -> Call {
    let mut id = [0; 16];
    getrandom::fill(&mut id).unwrap();
    Call {
        id: ActivationId(u128::from_le_bytes(id)),
        action: action.clone(),
        args: arguments(args),
        asked_ms: 0,
        trace: Trace::default(),
    }
}

pub fn arguments(args: Map<String, Value>) -> Arguments {
    Arguments::from_body(Value::Object(args).to_string().into_bytes()).unwrap()
}

pub async fn answered(call: Receiver<Activation>) -> Activation {
    timeout(Duration::from_secs(600), call).await.expect("an answer in time").expect("an answer")
}

/// Lets background work settle.
pub async fn settle() {
    sleep(Duration::from_millis(250)).await;
}

/// An annotation of an activation.
pub fn annotation(made: &Activation, key: &str) -> Option<Value> {
    made.annotations.get(key)
}

pub fn kind(made: &Activation) -> String {
    annotation(made, "startKind").unwrap().as_str().unwrap().to_owned()
}
