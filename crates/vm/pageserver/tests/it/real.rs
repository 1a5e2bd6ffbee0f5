//! A real Firecracker, where there is one on the `PATH`.
//!
//! Its guest is a loop of machine code in an ELF file, which Firecracker takes for a kernel:
//!
//! ```text
//!  16 MiB   code       mixes one word of each page of the data into one number, again and again
//!   + 4 KiB results    rounds, and the number of the last
//!   + 8 KiB data       words that differ
//! ```
//! Where KVM emulates a guest that runs as a kernel, each instruction takes about a microsecond.

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_image::vm::{self, Snapshot};
use farfork_minivmm::PAGE_BYTES;
use farfork_pageserver::Record;
use farfork_pool::Pool;
use serde_json::json;

use crate::bed::{Bed, LIMIT, can_serve};

const MEMORY_MIB: u64 = 64;
/// The first MiB, where the monitor has its tables.
const FIRMWARE_PAGES: u64 = (1 << 20) / PAGE_BYTES;
const CODE_AT: u64 = 16 << 20;
const ROUNDS_AT: u64 = CODE_AT + PAGE_BYTES;
const RESULT_AT: u64 = ROUNDS_AT + 8;
const DATA_AT: u64 = CODE_AT + 2 * PAGE_BYTES;
const DATA_PAGES: u64 = 1500;
const PAGE_WORDS: u64 = PAGE_BYTES / 8;

/// A word of the data.
fn word(index: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index << 7 | 1
}

/// What the guest mixes in one round.
fn expected() -> u64 {
    let mix = |mixed: u64, page| mixed.rotate_left(5).wrapping_add(word(page * PAGE_WORDS));
    (0..DATA_PAGES).fold(0, mix)
}

fn guest() -> Vec<u8> {
    let mut code = Vec::new();
    let mut add = |bytes: &[u8], number: Option<u64>| {
        code.extend(bytes);
        code.extend(number.map(|number| number as u32).into_iter().flat_map(u32::to_le_bytes));
    };
    add(&[0x48, 0x31, 0xc0], None); //                          0: xor rax, rax
    add(&[0x48, 0xc7, 0xc6], Some(DATA_AT)); //                 3: mov rsi, DATA_AT
    add(&[0x48, 0xc7, 0xc1], Some(DATA_PAGES)); //             10: mov rcx, DATA_PAGES
    add(&[0x48, 0xc1, 0xc0, 0x05], None); //                   17: rol rax, 5
    add(&[0x48, 0x03, 0x06], None); //                         21: add rax, [rsi]
    add(&[0x48, 0x81, 0xc6], Some(PAGE_BYTES)); //             24: add rsi, 4096
    add(&[0x48, 0xff, 0xc9], None); //                         31: dec rcx
    add(&[0x75, 0xed], None); //                               34: jnz 17
    add(&[0x48, 0x89, 0x04, 0x25], Some(RESULT_AT)); //        36: mov [RESULT_AT], rax
    add(&[0x48, 0xff, 0x04, 0x25], Some(ROUNDS_AT)); //        44: inc qword [ROUNDS_AT]
    add(&[0xeb, 0xca], None); //                               52: jmp 0
    let data = (0..DATA_PAGES * PAGE_WORDS).flat_map(|index| word(index).to_le_bytes());
    code.resize((DATA_AT - CODE_AT) as usize, 0);
    code.extend(data);
    code
}

/// The guest as an ELF file with one segment.
fn kernel() -> Vec<u8> {
    let guest = guest();
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // An executable of x86-64, version 1; its entry, its program headers, no sections.
    file.extend([2u16, 62].map(u16::to_le_bytes).as_flattened());
    file.extend(1u32.to_le_bytes());
    file.extend([CODE_AT, 64, 0].map(u64::to_le_bytes).as_flattened());
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 1, 0, 0, 0].map(u16::to_le_bytes).as_flattened());
    // A segment to load, of all rights.
    file.extend([1u32, 7].map(u32::to_le_bytes).as_flattened());
    let bytes = guest.len() as u64;
    let segment = [PAGE_BYTES, CODE_AT, CODE_AT, bytes, bytes, PAGE_BYTES];
    file.extend(segment.map(u64::to_le_bytes).as_flattened());
    file.resize(PAGE_BYTES as usize, 0);
    file.extend(guest);
    file
}

/// A Firecracker with an API socket. Dropped, it is killed.
struct Firecracker {
    process: Child,
    api: PathBuf,
}

impl Firecracker {
    fn start(api: PathBuf) -> Firecracker {
        let process = Command::new("firecracker").arg("--api-sock").arg(&api).spawn().unwrap();
        Firecracker { process, api }
    }

    /// Sends a request that has to succeed.
    fn ask(&mut self, method: &str, path: &str, body: &serde_json::Value) {
        let until = Instant::now() + LIMIT;
        let mut socket = loop {
            match UnixStream::connect(&self.api) {
                Ok(socket) => break socket,
                Err(error) => {
                    assert!(Instant::now() < until, "{error:?}, {:?}", self.process.try_wait());
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let body = body.to_string();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost");
        let content = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
        write!(socket, "{head}\r\n{content}\r\n\r\n{body}").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let mut answer = [0; 4096];
        let count = socket.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..count]);
        assert!(answer.starts_with("HTTP/1.1 204"), "{method} {path}: {answer}");
    }

    fn boot(&mut self, kernel: &Path) {
        let machine =
            json!({ "vcpu_count": 1, "mem_size_mib": MEMORY_MIB, "track_dirty_pages": true });
        self.ask("PUT", "/machine-config", &machine);
        self.ask("PUT", "/boot-source", &json!({ "kernel_image_path": kernel }));
        self.ask("PUT", "/actions", &json!({ "action_type": "InstanceStart" }));
    }

    /// Loads a snapshot whose memory a page server fills; the guest is paused.
    fn load(&mut self, state: &Path, socket: &Path) {
        let backend = json!({ "backend_type": "Uffd", "backend_path": socket });
        let load = json!({ "snapshot_path": state, "mem_backend": backend });
        self.ask("PUT", "/snapshot/load", &load);
    }

    fn set_state(&mut self, state: &str) {
        self.ask("PATCH", "/vm", &json!({ "state": state }));
    }

    /// Pauses the guest, and writes all of its memory.
    fn save(&mut self, state: &Path, memory: &Path) {
        self.set_state("Paused");
        self.write("Full", state, memory);
    }

    /// Writes a snapshot of the paused guest.
    fn write(&mut self, kind: &str, state: &Path, memory: &Path) {
        let save =
            json!({ "snapshot_type": kind, "snapshot_path": state, "mem_file_path": memory });
        self.ask("PUT", "/snapshot/create", &save);
    }
}

impl Drop for Firecracker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Rounds of the guest, and the number of the last, as a memory file has them.
fn results(memory: &[u8]) -> (u64, u64) {
    let word = |at: u64| {
        let at = at as usize;
        u64::from_le_bytes(memory[at..at + 8].try_into().unwrap())
    };
    (word(ROUNDS_AT), word(RESULT_AT))
}

/// Long enough for a few rounds.
const RUN: Duration = Duration::from_millis(600);

/// Whether there is one; says so if not.
fn is_there() -> bool {
    let version = Command::new("firecracker").arg("--version").stdout(Stdio::null()).status();
    if version.is_err() {
        println!("skipped: there is no firecracker on the PATH");
    }
    version.is_ok()
}

#[test]
fn changes_that_firecracker_writes_go_on_top_of_their_base() {
    if !is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("kernel"), kernel()).unwrap();
    let mut machine = Firecracker::start(path("api"));
    machine.boot(&path("kernel"));
    std::thread::sleep(RUN);
    machine.save(&path("state"), &path("memory"));
    machine.set_state("Resumed");
    std::thread::sleep(RUN);
    machine.set_state("Paused");
    machine.write("Diff", &path("state-2"), &path("changes"));
    machine.write("Full", &path("state-3"), &path("memory-3"));
    drop(machine);
    let pool = Pool::create(&path("pool"), 64 << 20).unwrap();
    let import = |state: &str, memory: &str, base: Option<vm::Base<'_>>| {
        let made = vm::import(&pool, None, &path(state), &path(memory), base, &mut |_, _, _| ());
        let file = pool.find(made.unwrap().cid).unwrap();
        (Snapshot::read_from(&file).unwrap(), file)
    };
    let (base, base_file) = import("state", "memory", None);
    let (snapshot, file) = import("state-2", "changes", Some((&base, &base_file)));
    let mut merged = vec![0; (MEMORY_MIB << 20) as usize];
    snapshot.read_memory(&file, 0, &mut merged).unwrap();
    let [before, after] = ["memory", "memory-3"].map(|name| std::fs::read(path(name)).unwrap());
    assert!(merged == after && merged != before);
    assert!(results(&merged).0 > results(&before).0);
    // Far less than all of it was written.
    let changes = std::fs::metadata(path("changes")).unwrap().blocks() * 512;
    assert!(changes < 1 << 20, "{changes}");
}

#[test]
fn firecracker_restores_from_the_page_server() {
    if !is_there() || !can_serve() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("kernel"), kernel()).unwrap();
    let mut first = Firecracker::start(path("api"));
    first.boot(&path("kernel"));
    std::thread::sleep(RUN);
    first.save(&path("state"), &path("memory"));
    drop(first);
    let saved = std::fs::read(path("memory")).unwrap();
    let (rounds, result) = results(&saved);
    assert!(rounds > 0 && result == expected(), "the guest does not run: {rounds} rounds");
    let bed = Bed::of_files(&path("state"), &path("memory"));
    let serving = bed.serve_with(Record::First, Vec::new());
    for turn in 0..2 {
        let mut machine = Firecracker::start(path(&format!("api-{turn}")));
        machine.load(&path("state"), &serving.socket);
        serving.filled();
        machine.set_state("Resumed");
        // The first server dies while the guest waits for pages.
        if turn == 0 {
            serving.kill_server();
        }
        std::thread::sleep(RUN);
        machine.save(&path("state-2"), &path("memory-2"));
        drop(machine);
        let counters = serving.ended();
        assert_eq!(counters.poisoned_pages, 0, "{counters:?}");
        assert_eq!(counters.hot_pages > 0, turn == 1, "{counters:?}");
        let after = std::fs::read(path("memory-2")).unwrap();
        let (more, result) = results(&after);
        assert!(more > rounds && result == expected(), "{more} rounds after {rounds}");
        let differing = saved.chunks(4096).zip(after.chunks(4096)).enumerate();
        let differing = differing.filter(|(_, (before, after))| before != after);
        // Firecracker itself writes what shows a guest that it was restored (VMGenID, VMClock).
        let pages = differing.map(|(page, _)| page as u64).filter(|page| *page >= FIRMWARE_PAGES);
        let pages: Vec<u64> = pages.collect();
        assert_eq!(pages, [ROUNDS_AT / PAGE_BYTES], "turn {turn}");
    }
}
