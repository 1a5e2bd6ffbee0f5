//! Round trips by iceoryx2: two services of publishers and subscribers, which both poll.
#![allow(unsafe_code)] // reason: forks

use std::error::Error;
use std::time::{Duration, Instant};

use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

/// 64 bytes, as the objects.
type Message = [u64; 8];
type Way = PortFactory<ipc::Service, Message, ()>;
/// Before the other process has begun, and before it has ended.
const PATIENCE: Duration = Duration::from_secs(10);
const UNCOUNTED: usize = 100;

/// Half of a round trip between two processes.
pub(in super::super) fn one_way_ns(trips: usize) -> Option<Result<f64, String>> {
    let name = format!("farfork-bench-{}-{:?}", std::process::id(), Instant::now());
    // SAFETY: the other threads of this program have ended, and the child never returns.
    let child = match unsafe { fork() } {
        Err(errno) => return Some(Err(errno.to_string())),
        Ok(ForkResult::Parent { child }) => child,
        Ok(ForkResult::Child) => {
            let _ = answer(&name, trips);
            // SAFETY: ends the process at once.
            unsafe { nix::libc::_exit(0) }
        }
    };
    let measured = ask(&name, trips).map_err(|error| error.to_string());
    end(child, measured.is_err());
    Some(measured)
}

fn end(child: Pid, is_wanted_dead: bool) {
    if is_wanted_dead {
        let _ = kill(child, Signal::SIGKILL);
    }
    let _ = waitpid(child, None);
}

/// The way there or back.
fn open(node: &Node<ipc::Service>, name: &str, way: &str) -> Result<Way, Box<dyn Error>> {
    let builder = node.service_builder(&ServiceName::new(&format!("{name}/{way}"))?);
    Ok(builder.publish_subscribe::<Message>().open_or_create()?)
}

fn ask(name: &str, trips: usize) -> Result<f64, Box<dyn Error>> {
    set_log_level(LogLevel::Error);
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let (there, back) = (open(&node, name, "there")?, open(&node, name, "back")?);
    let (publisher, subscriber) =
        (there.publisher_builder().create()?, back.subscriber_builder().create()?);
    let until = Instant::now() + PATIENCE;
    while there.dynamic_config().number_of_subscribers() == 0
        || back.dynamic_config().number_of_publishers() == 0
    {
        if Instant::now() > until {
            return Err("the other process did not begin".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut begun = Instant::now();
    for trip in 0..trips + UNCOUNTED {
        if trip == UNCOUNTED {
            begun = Instant::now();
        }
        publisher.loan_uninit()?.write_payload([trip as u64; 8]).send()?;
        loop {
            if let Some(sample) = subscriber.receive()? {
                if sample[0] != trip as u64 {
                    return Err("a message was lost".into());
                }
                break;
            }
            std::hint::spin_loop();
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / (2 * trips) as f64)
}

fn answer(name: &str, trips: usize) -> Result<(), Box<dyn Error>> {
    set_log_level(LogLevel::Error);
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let (there, back) = (open(&node, name, "there")?, open(&node, name, "back")?);
    let publisher = back.publisher_builder().create()?;
    let subscriber = there.subscriber_builder().create()?;
    let mut left = trips + UNCOUNTED;
    let until = Instant::now() + 6 * PATIENCE;
    while left > 0 && Instant::now() < until {
        for _ in 0..10_000 {
            if let Some(sample) = subscriber.receive()? {
                publisher.loan_uninit()?.write_payload(*sample).send()?;
                left -= 1;
            }
            std::hint::spin_loop();
        }
    }
    Ok(())
}
