//! What runs in processes of its own: servers, and monitors that are expected to die.

use std::io::stdin;
use std::os::fd::AsFd;
use std::path::Path;

use farfork_minivmm::{Backing, Monitor, Walk};

use crate::bed::{CHILD, LIMIT};

/// Does nothing unless it was started to do something. Exit status 3: the guest went to its end.
#[test]
fn process() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = what.split_whitespace().collect();
    match words[..] {
        ["serve"] => {
            let channel = stdin().as_fd().try_clone_to_owned().unwrap();
            farfork_pageserver::serve(channel).unwrap();
        }
        ["guest", state, socket] => {
            let backing = Backing::Uffd(Path::new(socket));
            let mut monitor = Monitor::restore(Path::new(state), backing).unwrap();
            let pages = monitor.bytes() / 4096;
            // KVM would see a first page without content before the monitor does.
            monitor.load(0);
            monitor.walk(&Walk::whole(pages)).unwrap();
            std::process::exit(3);
        }
        ["hold", state, socket] => {
            let backing = Backing::Uffd(Path::new(socket));
            let monitor = Monitor::restore(Path::new(state), backing).unwrap();
            std::thread::sleep(LIMIT);
            drop(monitor);
        }
        _ => panic!("{what}"),
    }
}
