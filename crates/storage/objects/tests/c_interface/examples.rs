//! The C examples, and errors as C sees them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use farfork::{GuardLibrary, Region};

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

/// A program that finds the library of this build, whatever cargo says about libraries of older ones.
fn start(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LD_LIBRARY_PATH");
    command
}

fn example(name: &str) -> PathBuf {
    Path::new(CRATE).join("examples").join(name)
}

/// The setting that protects metadata, unless this machine has no keys.
fn protection() -> &'static str {
    let processors = std::fs::read_to_string("/proc/cpuinfo").expect("processors");
    let has_keys = processors.split_whitespace().any(|flag| flag == "ospke");
    if has_keys {
        return "1";
    }
    println!("skipped: the processor or the kernel has no protection keys");
    "0"
}

#[test]
fn a_producer_and_a_consumer_in_c_pass_objects() {
    for (is_static, setting) in [(false, "0"), (true, "0"), (false, protection())] {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let region = directory.path().join("region");
        Region::create(&region, 1 << 20).expect("a region");
        let [produce, consume] = ["produce", "consume"].map(|name| {
            let program = directory.path().join(name);
            compile(&example(&format!("{name}.c")), &program, is_static);
            program
        });
        let start = |program| {
            let mut command = start(program);
            command.env("FARFORK_PROTECTED", setting);
            command
        };
        let mut producer = start(&produce).arg(&region).arg("20000").spawn().expect("a producer");
        let mut consumer = start(&consume);
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
fn stray_stores_to_protected_metadata_are_trapped() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let program = directory.path().join("protected");
    compile(&Path::new(CRATE).join("tests/c_interface/protected.c"), &program, false);
    for setting in ["0", protection()] {
        let region = directory.path().join("region");
        Region::create(&region, 1 << 20).expect("a region");
        let output = start(&program)
            .arg(&region)
            .env("FARFORK_PROTECTED", setting)
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let expected = if setting == "0" { "0 of 6\n" } else { "6 of 6\n" };
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        let check = Region::<farfork::Node>::open(&region).and_then(|region| region.check());
        let check = check.expect("a check");
        assert!(check.is_clean() && check.bytes_free == check.bytes, "{check:?}");
        std::fs::remove_file(&region).expect("removed");
    }
}

/// A program that uses up all keys before it opens the region, and machines without keys.
#[test]
fn a_region_that_cannot_be_protected_is_not_opened() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let region = directory.path().join("region");
    Region::create(&region, 1 << 20).expect("a region");
    let program = directory.path().join("keyless");
    compile(&Path::new(CRATE).join("tests/c_interface/keyless.c"), &program, false);
    let output = start(&program).arg(&region).env("FARFORK_PROTECTED", "1").output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn errors_reach_c_as_numbers_and_words() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let region = directory.path().join("region");
    Region::create(&region, 1 << 20).expect("a region");
    let program = directory.path().join("errors");
    compile(&Path::new(CRATE).join("tests/c_interface/errors.c"), &program, false);
    let output = start(&program).arg(&region).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn structures_are_shared_by_c_programs() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let region = directory.path().join("region");
    Region::create(&region, 1 << 20).expect("a region");
    let program = directory.path().join("structures");
    compile(&Path::new(CRATE).join("tests/c_interface/structures.c"), &program, false);
    let output = start(&program).arg(&region).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn guarded_operations_of_c_programs_are_completed() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let region = directory.path().join("region");
    Region::create(&region, 1 << 20).expect("a region");
    let program = directory.path().join("guards");
    let both = directory.path().join("both.c");
    let include = |path: PathBuf| format!("#include \"{}\"\n", path.display());
    let test = Path::new(CRATE).join("tests/c_interface/guards.c");
    // The same `struct payment` twice would not compile.
    let text = std::fs::read_to_string(example("payment.c")).expect("an example");
    let payment = directory.path().join("payment.c");
    std::fs::write(&payment, text.replace("struct payment", "struct paid")).expect("written");
    let posix = "#define _POSIX_C_SOURCE 200809L\n".to_owned();
    std::fs::write(&both, posix + &include(payment) + &include(test)).expect("written");
    compile(&both, &program, false);
    let output = start(&program).arg(&region).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_library_of_operations_is_loaded_and_registered() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let region = directory.path().join("region");
    Region::create(&region, 1 << 20).expect("a region");
    let library = directory.path().join("payment.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&library);
    cc.arg("-I").arg(Path::new(CRATE).join("include")).arg(example("payment.c"));
    assert!(cc.status().expect("cc starts").success());
    let loaded = GuardLibrary::load(&library).expect("a library");
    assert_eq!(loaded.operations().collect::<Vec<_>>(), [("pay", 1)]);
    let opened = Region::<farfork::Node>::open(&region).expect("a region");
    loaded.register(&opened, Some(Duration::from_millis(1500))).expect("registered");
    loaded.register(&opened, None).expect("registered twice");
    let known = opened.operations();
    assert_eq!((known.len(), known[0].name.as_str(), known[0].grace_us), (1, "pay", 1_500_000));
    for path in ["/nowhere.so", "/dev/null", "libc.so.6"] {
        let error = GuardLibrary::load(Path::new(path)).expect_err(path).to_string();
        assert!(error.starts_with("cannot load guarded operations from"), "{error}");
    }
}
