//! A pool with many images is as fast as one with few.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use farfork_pool::Pool;
use farfork_types::Cid;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::child::{Kind, Orders, USER};
use crate::common::{Place, publish};

const MANY: u32 = 10_000;

/// As publications would leave them, which would take minutes.
fn plant(place: &Place, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let mut bytes = [0xee; 16];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        let file = File::create_new(place.file(&format!("images/{}", Cid::from_bytes(bytes))));
        file.unwrap().set_permissions(fs::Permissions::from_mode(0o400)).unwrap();
    }
}

/// How many system calls a child makes to find an image and to publish another.
fn calls(pool: &Pool, kind: Kind, cid: Cid) -> u32 {
    let orders = Orders { kind, cid, ..Orders::new("find and publish", pool.path()) };
    // Waited for by its thread's id, as its tracer.
    #[expect(clippy::zombie_processes)] // reason: see above
    let mut child = orders.command().stderr(Stdio::piped()).spawn().unwrap();
    let mut thread = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut thread).unwrap();
    let thread = Pid::from_raw(thread.trim().parse().unwrap());
    ptrace::seize(thread, Options::PTRACE_O_TRACESYSGOOD).unwrap();
    ptrace::interrupt(thread).unwrap();
    drop(child.stdin.take());
    let mut stops = 0;
    loop {
        match waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::PtraceSyscall(_) => stops += 1,
            WaitStatus::Exited(_, status) => {
                assert_eq!(status, 0);
                break;
            }
            WaitStatus::Signaled(_, signal, _) => panic!("the child was killed: {signal}"),
            _ => {}
        }
        // It may end just now.
        let _ = ptrace::syscall(thread, None);
    }
    stops / 2
}

#[test]
fn what_it_costs_to_find_and_to_publish_does_not_depend_on_how_many_images_there_are() {
    let place = Place::new();
    if !place.is_mounted {
        // There the pool adds up what its images take, which its own limit is compared with.
        return;
    }
    let pool = place.pool();
    let cid = publish(&pool, 1, 7);
    let measure = || [Kind::Usual, Kind::Named].map(|kind| calls(&pool, kind, cid));
    measure();
    plant(&place, 0..10);
    let few = measure();
    plant(&place, 10..MANY);
    let many = measure();
    println!("system calls with 10 images {few:?}, with {MANY} {many:?}");
    for (few, many) in few.into_iter().zip(many) {
        assert!(few > 10 && many < few + 20, "{few} with few, {many} with many");
    }
}

#[test]
fn many_images_are_listed_checked_and_removed() {
    let place = Place::new();
    let pool = place.pool();
    plant(&place, 0..MANY);
    assert_eq!(pool.images().unwrap().len(), MANY as usize);
    let report = pool.check().unwrap();
    assert_eq!((report.images, report.findings), (MANY as usize, vec![]));
    assert_eq!(pool.info().unwrap().images.len(), MANY as usize);
    let cid = crate::common::publish_for(Some(USER), &pool, 1, 7).unwrap();
    pool.remove(cid).unwrap();
    crate::common::destroy(&place.path());
    assert_eq!(place.list("."), [""; 0]);
}
