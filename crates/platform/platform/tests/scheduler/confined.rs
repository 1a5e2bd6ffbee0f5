//! The confinement that an instance gets before it loads code.

use std::io::{Cursor, Write};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_platform::api::Outcome;
use farfork_platform::scheduler::Caller;
use farfork_policy::Settings;
use serde_json::json;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::world::{World, name, settle};

fn archive(text: &str) -> String {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    writer.start_file("main.py", SimpleFileOptions::default()).unwrap();
    writer.write_all(text.as_bytes()).unwrap();
    STANDARD.encode(writer.finish().unwrap().into_inner())
}

#[tokio::test(start_paused = true)]
async fn an_instance_runs_as_its_namespaces_user() {
    let world = World::new();
    assert_eq!(world.store.number(&name("first")).unwrap(), 0, "so that the guest's is another");
    let guest = world.action("a", "code", json!({}));
    world.calls(&guest, 1).await;
    let init = world.nodes.script().init.clone();
    assert_eq!(init["confinement"]["user"], 2_000_000_001);
    assert_eq!(init["confinement"]["group"], init["confinement"]["user"]);
    assert!(init["confinement"]["filter"].as_str().unwrap().len() > 100);
    assert!(init["folder"].is_null(), "{init}");
    assert_eq!(init["value"]["code"], "code");
}

#[tokio::test(start_paused = true)]
async fn the_files_of_an_archive_live_as_long_as_its_version() {
    let world = World::new();
    let action = world.action("zipped", &archive("one"), json!({}));
    world.calls(&action, 1).await;
    let init = world.nodes.script().init.clone();
    assert_eq!(init["value"]["code"], "", "it is in the folder");
    let folder = Path::new(init["folder"].as_str().unwrap()).to_owned();
    assert_eq!(std::fs::read_to_string(folder.join("main.py")).unwrap(), "one");
    // A restarted platform keeps needed folders only.
    let left = folder.with_file_name("guest_gone:0.0.1-x");
    std::fs::create_dir(&left).unwrap();
    let World { nodes, store, directory, .. } = world;
    let world = World::on(nodes, store, directory, Settings::default());
    assert_eq!((folder.exists(), left.exists()), (true, false));
    world.store.delete_action(&action.namespace, &action.name).unwrap();
    world.platform.gone(&action);
    settle().await;
    assert!(!folder.exists());
}

#[tokio::test(start_paused = true)]
async fn an_invalid_archive_is_a_developer_error() {
    let world = World::new();
    let action = world.action("wrong", &STANDARD.encode(b"PK\x03\x04 and no more"), json!({}));
    let made = world.call(&action, json!({})).await;
    assert_eq!(made.response.status, Outcome::DeveloperError);
    assert!(made.response.result.value()["error"].as_str().unwrap().contains("cannot unpack"));
    assert!(world.nodes.events().is_empty(), "nothing is started for it");
}
