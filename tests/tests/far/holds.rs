//! Images of which another node has not all bytes: what is removed there, and what stays.

use std::process::Command;
use std::time::Duration;

use farfork_tests::driver::Tests;
use farfork_tests::nodes::{AWAY, demand, missing, refused};
use farfork_tests::program::Program;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::sys::signal::Signal;

use crate::answers::demand_little;
use crate::failures::{drop_cached, must_end};
use crate::tier::Near;

/// Adds the tests.
pub fn add(tests: &mut Tests) {
    tests.add("far::tier_held", missing(), held);
    tests.add("far::tier_removed", missing(), removed);
    tests.add("far::tier_prefetched", missing(), prefetched);
    tests.add("far::tier_server_stopped", missing(), server_stopped);
}

/// The names in the other node's pool, and their images.
fn names_there(near: &Near) -> Outcome<String> {
    let mut command = near.bed.on(AWAY, &["images", "list", "--pool"])?;
    command.arg(&near.bed.pool);
    Ok(farfork::text(&farfork::must_run(command)?))
}

fn remove_there(near: &Near, image: &str) -> Outcome<Command> {
    let mut command = near.bed.on(AWAY, &["images", "rm", "--pool"])?;
    command.arg(&near.bed.pool).arg(image);
    Ok(command)
}

/// Removing the image at the other node leaves the bytes that are there only.
fn held() -> Outcome {
    let mut near = Near::set("tier-held", &Program::c("far_pages"))?;
    let cid = near.show()?["cid"].as_str().unwrap_or_default().to_owned();
    near.tier(&["--all"])?;
    demand(
        names_there(&near)?.contains(&format!("far-parts/{cid}")),
        "a hold",
        &names_there(&near)?,
    )?;
    farfork::forget(&near.bed.pool, &near.image)?;
    let (_, said) = refused(remove_there(&near, &cid)?)?;
    demand(said.contains("another node has parts of it here only"), "a refusal", &said)?;
    demand(said.contains("--back"), "a remedy", &said)?;
    // A server that starts anew does not know what was asked of the last one.
    near.bed.signal_server(Signal::SIGKILL)?;
    near.bed.serve()?;
    near.clone(&[])?.must_pass()?;
    // Again, with nothing to move: the hold is still one.
    near.tier(&["--all"])?;
    near.back()?;
    near.clone(&[])?.must_pass()?;
    demand(!names_there(&near)?.contains(&cid), "no image there", &names_there(&near)?)?;
    let (_, said) = refused(near.with_node(&["images", "tier", "--all"])?)?;
    demand(said.contains("it has no image"), "nothing to move to", &said)?;
    near.clone(&[])?.must_pass()
}

/// An image with far parts that is removed lets go of them; the other node's own names stay.
fn removed() -> Outcome {
    let mut near = Near::set("tier-removed", &Program::c("far_pages"))?;
    let cid = near.show()?["cid"].as_str().unwrap_or_default().to_owned();
    near.tier(&["--all"])?;
    let held = format!("far-parts/{cid}");
    farfork::must_run(near.command(&["images", "rm"])?)?;
    let names = names_there(&near)?;
    demand(names.contains(&near.image) && !names.contains(&held), "its own name", &names)?;
    farfork::must_run(near.with_node(&["images", "pull"])?)?;
    near.tier(&["--all"])?;
    // Without the node the image goes, and the hold is named.
    near.bed.signal_server(Signal::SIGKILL)?;
    let output = farfork::must_run(near.command(&["images", "rm"])?)?;
    let said = farfork::text(&output);
    demand(said.contains(&format!("farfork images rm {held}")), "what is left there", &said)?;
    let names = names_there(&near)?;
    let hold = names.split_whitespace().find(|word| word.starts_with(&held));
    farfork::forget(&near.bed.pool, hold.unwrap_or("none"))?;
    farfork::must_run(remove_there(&near, &cid)?)?;
    destroyed()
}

/// A pool that is destroyed lets go of all.
fn destroyed() -> Outcome {
    let near = Near::set("tier-destroyed", &Program::c("far_pages"))?;
    let cid = near.show()?["cid"].as_str().unwrap_or_default().to_owned();
    near.tier(&["--all"])?;
    let there = near.bed.pool.display().to_string();
    let (_, said) = refused(near.bed.on(AWAY, &["pool", "destroy", &there])?)?;
    demand(said.contains("another node has parts of an image here only"), "a refusal", &said)?;
    let pool = near.pool.display().to_string();
    farfork::must_run(near.bed.on(AWAY, &["pool", "destroy", "--force", &pool])?)?;
    farfork::must_run(remove_there(&near, &cid)?).map(drop)
}

/// Far parts are fetched in advance, in the order in which clones needed them, when an agent first uses the image.
fn prefetched() -> Outcome {
    let near = Near::set("tier-prefetched", &Program::c("far_pages"))?;
    let cid = near.show()?["cid"].as_str().unwrap_or_default().to_owned();
    near.tier(&["--all"])?;
    let (mut clone, pid) = near.detached(&[])?;
    clone.send(b"ttt");
    clone.await_line("NOTE touched 515")?;
    let order = || -> Outcome<Vec<u32>> {
        let pool = farfork_pool::Pool::open(&near.pool)
            .map_err(|error| Trouble::during("opening a pool", error))?;
        let cid = cid.parse().map_err(|_| Trouble::during("far parts", "no id"))?;
        pool.access_order(cid).map_err(|error| Trouble::during("reading an order", error))
    };
    testbed::eventually("an order", || Ok(order()?.len() > 64))?;
    demand(!order()?.is_sorted(), "the order of a program", &order()?.len())?;
    clone.send_byte();
    near.bed.must_pass(pid)?;
    // An agent that ends within a second of a read may lose the last of it.
    testbed::eventually("the rest of the order", || {
        let before = order()?.len();
        std::thread::sleep(Duration::from_millis(1500));
        Ok(before > 8192 && order()?.len() == before)
    })?;
    for socket in std::fs::read_dir(near.bed.run()).into_iter().flatten().flatten() {
        let _ = testbed::end_agent(&socket.path());
    }
    let unmounted = || Ok(farfork::run(near.bed.unmount()?)?.status.success());
    testbed::eventually("the unmount", unmounted)?;
    // Another agent, and nothing cached.
    let (mut clone, pid) = near.detached(&[])?;
    near.bed.await_prefetch()?;
    let (fetched, bytes) = near.bed.fetched()?;
    demand(fetched > 32 << 20, "all to be fetched", &fetched)?;
    clone.send(b"ttt");
    clone.await_line("NOTE touched 515")?;
    clone.send_byte();
    near.bed.must_pass(pid)?;
    demand_little(&near.bed, fetched, bytes)
}

/// A server that is stopped and goes on.
fn server_stopped() -> Outcome {
    let mut near = Near::set("tier-stopped", &Program::c("far_pages"))?;
    near.tier(&["--all"])?;
    near.clone(&[])?.must_pass()?;
    drop_cached(&near.bed)?;
    let (first, first_pid) = near.detached(&[])?;
    let (mut second, pid) = near.detached(&[])?;
    near.bed.signal_server(Signal::SIGSTOP)?;
    must_end(&near.bed, first, first_pid, &["did not answer within the deadline"])?;
    near.bed.signal_server(Signal::SIGCONT)?;
    std::thread::sleep(Duration::from_millis(1100));
    second.send_byte();
    near.bed.must_pass(pid)
}
