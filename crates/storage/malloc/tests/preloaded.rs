//! Programs with the library preloaded: in memory of their own, and in a region.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use farfork::{Metadata, Node, Region};
use tempfile::TempDir;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
const REGION_BYTES: u64 = 256 << 20;

/// Where cargo puts the library: beside this program.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("an own path");
    let library = own.with_file_name("libfarfork_malloc.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

fn is_long() -> bool {
    std::env::var_os("FARFORK_TEST_LONG").is_some()
}

/// Where objects lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Own,
    Region,
    /// A region with its metadata in a file of this node.
    NodeLocal,
}

const BOTH: [Place; 2] = [Place::Own, Place::Region];
const ALL: [Place; 3] = [Place::Own, Place::Region, Place::NodeLocal];

/// A directory for a test, and regions there.
struct Stage {
    directory: TempDir,
    bytes: u64,
}

impl Stage {
    fn new() -> Stage {
        Stage::with_region(REGION_BYTES)
    }

    fn with_region(bytes: u64) -> Stage {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        Region::create(&directory.path().join("region"), bytes).expect("a region");
        Stage { directory, bytes }
    }

    /// The other region, which few tests need.
    fn node_local(&self) -> PathBuf {
        let path = self.path("node-local");
        if !path.exists() {
            let metadata = Metadata::Node(self.directory.path().to_owned());
            Region::create_with(&path, self.bytes, false, &metadata).expect("a region");
        }
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn compile(&self, name: &str) -> PathBuf {
        let program = self.path(name.trim_end_matches(".c"));
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-alloc-size-larger-than"]);
        cc.arg(Path::new(CRATE).join("tests").join(name)).arg("-o").arg(&program).arg("-lpthread");
        let output = cc.output().expect("cc starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    /// The compiler leaves calls of malloc as they are.
    fn compile_text(&self, text: &str) -> PathBuf {
        let (source, program) = (self.path("program.c"), self.path("program"));
        std::fs::write(&source, text).expect("written");
        let mut cc = Command::new("cc");
        cc.args(["-O0", "-fno-builtin", "-w", "-o"]).arg(&program).arg(source);
        assert!(cc.status().expect("cc starts").success());
        program
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>, place: Place) -> Command {
        let mut command = Command::new(program);
        command.env_remove("FARFORK_REGION").env("LD_PRELOAD", library());
        command.current_dir(self.directory.path());
        match place {
            Place::Own => {}
            Place::Region => drop(command.env("FARFORK_REGION", self.path("region"))),
            Place::NodeLocal => drop(command.env("FARFORK_REGION", self.node_local())),
        }
        command
    }

    /// Runs a program that must succeed; returns what it prints.
    fn run(&self, program: &Path, arguments: &[&str], place: Place) -> String {
        let output = self.command(program, place).args(arguments).output().expect("it starts");
        let text = succeeded(&output, &format!("{} {arguments:?}, {place:?}", program.display()));
        self.is_left_clean();
        text
    }

    /// What programs have left in the region is given back, and nothing is lost or double.
    fn is_left_clean(&self) {
        for path in ["region", "node-local"].map(|name| self.path(name)) {
            if path.exists() {
                let region = Region::<Node>::open(&path).expect("a region");
                region.recover().expect("a recovery");
                let check = region.check().expect("a check");
                assert!(check.is_clean() && check.bytes_free == check.bytes, "{check:?}");
            }
        }
    }
}

fn succeeded(output: &Output, what: &str) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what} ends with {}: {errors}", output.status);
    assert!(!errors.contains("libfarfork_malloc"), "{what}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_family_does_what_c_says() {
    let stage = Stage::new();
    let program = stage.compile("family.c");
    for place in BOTH {
        stage.run(&program, &[], place);
    }
}

#[test]
fn threads_find_what_they_wrote() {
    let stage = Stage::new();
    let program = stage.compile("threads.c");
    let seconds = if is_long() { "60" } else { "2" };
    for place in BOTH {
        let text = stage.run(&program, &[seconds], place);
        println!("{place:?}: {text}");
    }
}

#[test]
fn a_forked_child_has_objects_of_its_own() {
    let stage = Stage::new();
    let program = stage.compile("forks.c");
    for place in ALL {
        stage.run(&program, &[], place);
    }
}

/// Allocates as much as there is, frees it, and does so again.
const FILL: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
int main(int count, char **sizes) {
    struct rlimit none = {0, 0};
    if (getenv("NO_DESCRIPTORS")) setrlimit(RLIMIT_NOFILE, &none);
    for (int at = 1; at < count; at++) {
        size_t bytes = strtoul(sizes[at], NULL, 10), counts[3];
        for (int turn = 0; turn < 3; turn++) {
            void **objects = NULL, **object;
            counts[turn] = 0;
            while (errno = 0, (object = malloc(bytes))) {
                if (errno != 0) return 2;
                memset(object, 1, bytes);
                *object = objects;
                objects = object;
                counts[turn]++;
            }
            if (errno != ENOMEM) return 1;
            while ((object = objects)) {
                objects = *object;
                free(object);
            }
        }
        printf("%zu: %zu %zu %zu\n", bytes, counts[0], counts[1], counts[2]);
    }
    return 0;
}
"#;

#[test]
fn a_full_region_is_out_of_memory_and_serves_again_after_frees() {
    let stage = Stage::with_region(8 << 20);
    let program = stage.compile_text(FILL);
    fill(&stage, stage.command(program, Place::Region));
}

/// It cannot look for dead clients then, but it can give back what it has.
#[test]
fn a_full_region_serves_a_program_without_free_descriptors() {
    let stage = Stage::with_region(8 << 20);
    let mut command = stage.command(stage.compile_text(FILL), Place::Region);
    command.env("NO_DESCRIPTORS", "1");
    fill(&stage, command);
}

fn fill(stage: &Stage, mut command: Command) {
    let sizes = ["64", "1000", "40000", "1000000", "16", "30000"];
    let output = command.args(sizes).output().expect("it starts");
    let text = succeeded(&output, "a program that takes all");
    stage.is_left_clean();
    println!("{text}");
    assert_eq!(text.lines().count(), sizes.len(), "{text}");
    for (line, size) in text.lines().zip(sizes) {
        let counts: Vec<u64> =
            line.split(' ').skip(1).map(|count| count.parse().expect("a number")).collect();
        let size: u64 = size.parse().expect("a number");
        assert!(counts.iter().all(|count| count * size > 3 << 20), "{line}");
        assert!(counts.iter().all(|count| count.abs_diff(counts[0]) * size < 1 << 20), "{line}");
    }
}

/// An older copy in the place of the region has counted fewer clients than its metadata, which is lost then.
#[test]
fn a_program_counts_as_a_client_of_node_local_metadata() {
    let stage = Stage::with_region(8 << 20);
    let path = stage.node_local();
    let generation = || {
        let info = Region::<Node>::open(&path).expect("a region").info().expect("facts");
        info.metadata.expect("metadata").generation
    };
    let (copy, before) = (std::fs::read(&path).expect("a copy"), generation());
    stage.run(Path::new("/bin/true"), &[], Place::NodeLocal);
    assert_eq!(generation(), before);
    std::fs::write(&path, copy).expect("the copy");
    assert_eq!(generation(), before + 1);
}

#[test]
fn memory_of_a_process_is_limited_by_its_address_space() {
    let stage = Stage::new();
    let program = stage.compile_text(FILL);
    let mut shell = stage.command("/bin/sh", Place::Own);
    let limited = format!("ulimit -v 300000; exec {} 10000000 64 1000 40000", program.display());
    let output = shell.args(["-c", &limited]).output().expect("it starts");
    let text = succeeded(&output, "a program with little address space");
    println!("{text}");
    assert_eq!(text.lines().count(), 4, "one for each size");
    for line in text.lines() {
        let numbers: Vec<u64> = line
            .split([' ', ':'])
            .filter(|word| !word.is_empty())
            .map(|word| word.parse().expect("a number"))
            .collect();
        let [size, first, second, third] = numbers[..] else { panic!("{line}") };
        assert!([first, second, third].iter().all(|count| count * size > 150 << 20), "{line}");
    }
}

#[test]
fn misuse_ends_a_program_and_says_why() {
    let stage = Stage::new();
    let source =
        "#include <stdlib.h>\nint main(void) { char *p = malloc(40); MISUSE; return 0; }\n";
    let cases =
        ["free(p); free(p)", "free(p + 16)", "p = malloc(100000); free(p); p = realloc(p, 3)"];
    for (case, place) in cases.iter().flat_map(|case| BOTH.map(|place| (case, place))) {
        let program = stage.compile_text(&source.replace("MISUSE", case));
        let output = stage.command(program, place).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(6), "{case}: {text}");
        assert!(text.starts_with("libfarfork_malloc.so: cannot "), "{case}: {text}");
        assert!(text.contains("it is not an object of this program"), "{case}: {text}");
    }
}

#[test]
fn a_region_that_cannot_be_used_is_refused_in_words() {
    let stage = Stage::new();
    Region::create_checked(&stage.path("checked"), 1 << 20).expect("a region");
    std::fs::write(stage.path("other"), [0; 8192]).expect("written");
    for (region, words) in [
        ("nothing", "cannot open the region"),
        ("other", "is not a region"),
        ("checked", "it is a checked one"),
    ] {
        let mut command = stage.command("true", Place::Own);
        command.env("FARFORK_REGION", stage.path(region));
        let output = command.output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(127), "{region}: {text}");
        assert!(text.starts_with("libfarfork_malloc.so: ") && text.contains(words), "{text}");
        assert!(text.ends_with("or unset FARFORK_REGION\n"), "{text}");
    }
}

/// Clients live as long as their process, whatever it closes, and no longer.
#[test]
fn a_process_stays_a_client_without_descriptors_and_is_recovered_when_it_is_killed() {
    let stage = Stage::new();
    let source = "import os, sys, time; os.closerange(3, 4096); kept = [bytes(i % 5000) for i in range(20000)]\n\
         print('ready', flush=True); sys.stdin.read(1); assert all(len(b) == i % 5000 for i, b in enumerate(kept))";
    for is_killed in [false, true] {
        let mut command = stage.command("/usr/bin/python3", Place::Region);
        command.args(["-c", source]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let reader = child.stdout.take().expect("an output");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(reader), &mut line)
            .expect("a line");
        assert_eq!(line, "ready\n");
        let region = Region::<Node>::open(&stage.path("region")).expect("a region");
        assert_eq!(region.recover().expect("a recovery"), 0, "a living client was recovered");
        let check = region.check().expect("a check");
        assert!(check.is_clean() && check.bytes_free < check.bytes - (40 << 20), "{check:?}");
        match is_killed {
            true => child.kill().expect("killed"),
            // Its input ends: it looks at its objects.
            false => drop(child.stdin.take()),
        }
        let end = child.wait().expect("an end");
        assert_eq!(end.success(), !is_killed, "{end}");
        drop(region);
        stage.is_left_clean();
    }
}

/// Threads in the middle of anything, and children that copy their objects.
#[test]
fn a_program_that_is_killed_leaves_nothing() {
    let stage = Stage::new();
    let program = stage.compile("threads.c");
    for turn in 0..if is_long() { 500 } else { 20 } {
        let place = ALL[1 + turn % 2];
        let mut command = stage.command(&program, place);
        command.arg("60").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let (mut begun, mut output) = ([0; 6], child.stdout.take().expect("an output"));
        std::io::Read::read_exact(&mut output, &mut begun).expect("a line");
        assert_eq!(&begun, b"begun\n");
        let moment = u64::from(std::process::id()) * 37 + turn as u64 * 7919;
        std::thread::sleep(Duration::from_micros(10_000 + moment % 100_000));
        child.kill().expect("killed");
        let end = child.wait().expect("an end");
        assert_eq!(end.signal(), Some(9), "it ended by itself: {end}");
        stage.is_left_clean();
    }
}

fn sum(stage: &Stage, script: &str, place: Place) -> String {
    let output = stage.command("/bin/bash", place).args(["-ec", script]).output();
    succeeded(&output.expect("it starts"), script)
}

/// Runs a script with and without the library, and compares what it prints.
fn compare(script: &str) {
    let stage = Stage::new();
    let mut plain = Command::new("/bin/bash");
    plain.env_remove("LD_PRELOAD").env_remove("FARFORK_REGION");
    let output = plain.args(["-ec", script]).current_dir(stage.directory.path()).output();
    let expected = succeeded(&output.expect("it starts"), script);
    assert!(!expected.is_empty(), "{script} prints nothing");
    for place in BOTH {
        assert_eq!(sum(&stage, script, place), expected, "{place:?}: {script}");
        stage.is_left_clean();
    }
}

#[test]
fn a_shell_prints_the_same() {
    compare(
        "words=(); for i in {1..2000}; do words+=(\"word $i\"); done\n\
         declare -A map; for word in \"${words[@]}\"; do map[$word]=${#word}; done\n\
         printf '%s\\n' \"${!map[@]}\" | sort | sha256sum\n\
         for i in {1..20}; do (echo $((i * i)); exit 0) & done | sort -n | tr '\\n' ' '; wait\n\
         echo \"$(echo \"$(echo nested)\")\"",
    );
}

#[test]
fn a_compiler_makes_the_same() {
    compare(
        "cat > program.c <<'X'\n#include <stdio.h>\n#include <stdlib.h>\n\
         int main(void) { for (int i = 0; i < 5; i++) printf(\"%d \", rand() % 7 < 9 ? i : 0); return 0; }\nX\n\
         gcc -O2 -c program.c -o program.o; sha256sum < program.o; gcc program.o -o program; ./program",
    );
}

#[test]
fn python_computes_the_same() {
    compare(
        "PYTHONMALLOC=malloc /usr/bin/python3 -c \"\n\
         import json, hashlib, threading, subprocess, multiprocessing\n\
         data = [{'key %d' % i: list(range(i % 50))} for i in range(3000)]\n\
         results = []\n\
         def work(n): results.append(hashlib.sha256(json.dumps(json.loads(json.dumps(data[n:]))).encode()).hexdigest())\n\
         threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n\
         [t.start() for t in threads]; [t.join() for t in threads]\n\
         print(*sorted(results))\n\
         print(subprocess.check_output(['echo', 'hello'], text=True))\n\
         with multiprocessing.get_context('fork').Pool(3) as pool: print(pool.map(len, data))\n\
         \"",
    );
}
