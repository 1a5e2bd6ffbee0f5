//! Servers that are killed after each instruction between a message and its answer.
//!
//! ```text
//!  server's thread   ppoll ─► read ─► notes, finds the page, reads it, ioctl ─► ppoll
//!                                 └──── 0, 1, 2 … instructions ────┘
//!                                       killed: the next server goes on
//! ```
//! The thread is traced. From the message on it goes in single steps.

use std::time::{Duration, Instant};

use farfork_minivmm::{Monitor, PAGE_BYTES};
use farfork_pageserver::Event;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::bed::{Bed, LIMIT, PATTERN, Serving, can_serve};

/// `read`, and the two calls that wait for messages.
const READ: u64 = 0;
const WAITS: [u64; 2] = [7, 271];
/// `syscall`.
const INSTRUCTION: i64 = 0x050f;

/// What the guest does while its server is killed.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// It reads a page.
    Load,
    /// Its monitor discards a page that is there, and the guest reads it.
    Discard,
    /// The same of a page that is not there.
    DiscardMissing,
}

/// The thread of a server that serves the one machine: it waits for messages.
fn thread_of(server: i32) -> Pid {
    let until = Instant::now() + LIMIT;
    let waits = |id: &i32| {
        let call = std::fs::read_to_string(format!("/proc/{server}/task/{id}/syscall"));
        let number = call.ok().and_then(|call| call.split(' ').next()?.parse().ok());
        number.is_some_and(|number| WAITS.contains(&number))
    };
    loop {
        let tasks = std::fs::read_dir(format!("/proc/{server}/task")).into_iter().flatten();
        let mut ids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
        if let Some(id) = ids.find(waits) {
            return Pid::from_raw(id);
        }
        assert!(Instant::now() < until, "the server has no thread for the machine");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn wait(thread: Pid) -> WaitStatus {
    waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap()
}

/// Stops a thread, which may be in a call.
fn stop(thread: Pid) {
    ptrace::seize(thread, Options::PTRACE_O_TRACESYSGOOD).unwrap();
    ptrace::interrupt(thread).unwrap();
    assert!(matches!(wait(thread), WaitStatus::PtraceEvent(..)));
}

/// Lets it go until it has read a message.
fn await_message(thread: Pid) {
    loop {
        ptrace::syscall(thread, None).unwrap();
        assert!(matches!(wait(thread), WaitStatus::PtraceSyscall(_)));
        let registers = ptrace::getregs(thread).unwrap();
        // At the entry the result is an error that no call returns.
        if registers.orig_rax == READ && registers.rax as i64 > 0 {
            return;
        }
    }
}

/// Goes so many instructions, or to the next wait for messages; how many it went.
fn step(thread: Pid, most: u64) -> u64 {
    for count in 0..most {
        let registers = ptrace::getregs(thread).unwrap();
        let code = ptrace::read(thread, registers.rip as ptrace::AddressType).unwrap();
        if code & 0xffff == INSTRUCTION && WAITS.contains(&registers.rax) {
            return count;
        }
        ptrace::step(thread, None).unwrap();
        assert!(matches!(wait(thread), WaitStatus::Stopped(_, Signal::SIGTRAP)));
    }
    most
}

/// One act whose server is killed after `most` instructions, or when it waits again; how many it went.
fn strike(
    bed: &Bed,
    serving: &Serving,
    monitor: &Monitor,
    (act, page): (Act, u64),
    most: u64,
) -> u64 {
    let address = page * PAGE_BYTES + 8;
    if matches!(act, Act::Discard) {
        assert_eq!(monitor.load(address), bed.word(page, 1));
    }
    let thread = thread_of(serving.server());
    stop(thread);
    std::thread::scope(|threads| {
        let guest = threads.spawn(move || {
            if !matches!(act, Act::Load) {
                monitor.discard(page * PAGE_BYTES, PAGE_BYTES).unwrap();
            }
            monitor.load(address)
        });
        await_message(thread);
        let went = step(thread, most);
        serving.kill_server();
        // A thread that is traced is this one's to wait for.
        while !matches!(wait(thread), WaitStatus::Signaled(..) | WaitStatus::Exited(..)) {}
        serving.wait(|event| matches!(event, Event::Replaced { .. }).then_some(()));
        let expected = if matches!(act, Act::Load) { bed.word(page, 1) } else { 0 };
        assert_eq!(
            guest.join().unwrap(),
            expected,
            "{act:?} of page {page} after {went} instructions"
        );
        went
    })
}

/// A few places of each act, or, in the long run, each instruction.
#[test]
fn no_instruction_is_the_wrong_one_to_be_killed_at() {
    if !can_serve() {
        return;
    }
    let is_long = std::env::var_os("FARFORK_TEST_LONG").is_some();
    let bed = Bed::new(&PATTERN, 1);
    let serving = bed.serve();
    let mut monitor = bed.restore(&serving.socket);
    // Pages with something in them, each used once.
    let has_words = |page: &u64| bed.word(*page, 1) != 0;
    let mut left: Vec<u64> = (64..bed.pages()).filter(has_words).collect();
    let mut strikes = 0;
    for act in [Act::Discard, Act::DiscardMissing, Act::Load] {
        let mut next = |monitor: &mut Monitor| {
            if left.is_empty() {
                bed_again(&bed, &serving, monitor);
                left = (64..bed.pages()).filter(has_words).collect();
            }
            left.pop().unwrap()
        };
        let page = next(&mut monitor);
        let all = strike(&bed, &serving, &monitor, (act, page), u64::MAX);
        let stride = if is_long { 1 } else { all / 8 + 1 };
        let mut most = 0;
        while most <= all {
            let page = next(&mut monitor);
            strike(&bed, &serving, &monitor, (act, page), most);
            // The first instructions are those that note what was read.
            most += if most < 400 && is_long { 1 } else { stride };
            strikes += 1;
        }
        println!("{act:?}: {all} instructions from the message to the next wait");
    }
    println!("{strikes} kills");
    assert!(strikes > 20);
}

/// Another machine in the place of the first.
fn bed_again(bed: &Bed, serving: &Serving, monitor: &mut Monitor) {
    let other = bed.restore(&serving.socket);
    drop(std::mem::replace(monitor, other));
    serving.ended();
    // The thread of the machine that has ended is gone, too.
    std::thread::sleep(Duration::from_millis(20));
}
