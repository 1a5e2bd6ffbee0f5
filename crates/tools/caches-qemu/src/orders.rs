//! Executes orders.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use farfork_caches::{Answer, Observer, Order, PAGE_BYTES, Phase};
use farfork_sys::memory::pages_with_content;
use farfork_sys::words;
use nix::sys::signal::SigSet;

use crate::follow;

/// End of the user addresses.
const USER_END: u64 = 0x7fff_ffff_f000;

/// Executes orders from `socket`, in a thread of its own.
pub fn serve(socket: &str) -> io::Result<()> {
    let stream = UnixStream::connect(socket)?;
    // Signals of the emulated process must be delivered to its own threads.
    let before = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
    let thread = std::thread::Builder::new().name("orders".to_owned());
    let started = thread.spawn(move || {
        // After an error the benchmark has closed the connection.
        let _ = answer_all(&stream);
    });
    before.thread_set_mask()?;
    started.map(drop)
}

fn answer_all(stream: &UnixStream) -> io::Result<()> {
    for line in BufReader::new(stream).lines() {
        let order: Order = serde_json::from_str(&line?)?;
        let answer = serde_json::to_string(&execute(order))?;
        writeln!(&*stream, "{answer}")?;
    }
    Ok(())
}

fn execute(order: Order) -> Answer {
    let mut held = follow::observer();
    if let Order::Begin(sizes) = &order {
        *held = Some(Observer::new(sizes));
        return Ok(None);
    }
    let observer = held.as_mut().ok_or("invalid order: the first one must be Begin")?;
    match order {
        Order::Begin(_) => {}
        Order::Enter(phase) => {
            observer.enter(phase);
            follow::follow(phase != Phase::Ignored);
        }
        Order::Checkpoint => {
            let pages = present()
                .map_err(|error| format!("cannot read its pages: {}", words::of(&error)))?;
            observer.checkpoint(pages);
        }
        Order::ClearCaches => observer.clear_caches(),
        Order::Take => return Ok(Some(observer.take())),
        Order::TakePages => return Ok(Some(observer.take_pages())),
    }
    Ok(None)
}

/// The pages that are present, including QEMU's own.
fn present() -> io::Result<Vec<u64>> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let runs = pages_with_content(&pagemap, 0, USER_END)?;
    Ok(runs.iter().flat_map(|run| run.start / PAGE_BYTES..run.end / PAGE_BYTES).collect())
}
