//! The C examples, and errors as C sees them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use farfork::Region;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Where cargo puts the libraries: beside this program.
fn libraries() -> PathBuf {
    let own = std::env::current_exe().expect("an own path");
    own.parent().expect("a directory").to_owned()
}

fn compile(source: &Path, program: &Path, is_static: bool) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]);
    cc.arg(Path::new(CRATE).join("include")).arg(source).arg("-o").arg(program);
    if is_static {
        cc.arg(libraries().join("libfarfork.a")).args(["-lpthread", "-ldl", "-lm"]);
    } else {
        let libraries = libraries();
        cc.arg("-L").arg(&libraries).arg("-lfarfork");
        cc.arg(format!("-Wl,-rpath,{}", libraries.display()));
    }
    let output = cc.output().expect("cc starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn example(name: &str) -> PathBuf {
    Path::new(CRATE).join("examples").join(name)
}

#[test]
fn a_producer_and_a_consumer_in_c_pass_objects() {
    for is_static in [false, true] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let region = directory.path().join("region");
        Region::create(&region, 1 << 20).expect("a region");
        let [produce, consume] = ["produce", "consume"].map(|name| {
            let program = directory.path().join(name);
            compile(&example(&format!("{name}.c")), &program, is_static);
            program
        });
        let mut producer =
            Command::new(produce).arg(&region).arg("20000").spawn().expect("a producer");
        let mut consumer = Command::new(consume);
        consumer.arg(&region).arg("20000").stderr(Stdio::inherit());
        let output = consumer.output().expect("a consumer");
        assert!(producer.wait().expect("an end").success());
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.split(',').next(), Some("sum 199990000"), "{output:?}");
        let check = Region::<farfork::Node>::open(&region).and_then(|region| region.check());
        let check = check.expect("a check");
        assert!(check.is_clean() && check.bytes_free == check.bytes, "{check:?}");
    }
}

#[test]
fn errors_reach_c_as_numbers_and_words() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let region = directory.path().join("region");
    Region::create(&region, 1 << 20).expect("a region");
    let program = directory.path().join("errors");
    compile(&Path::new(CRATE).join("tests/errors.c"), &program, false);
    let output = Command::new(program).arg(&region).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
