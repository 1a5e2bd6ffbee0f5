//! Clones of far images have the right bytes, and fetch each page once.

use std::time::Duration;

use farfork_tests::driver::Tests;
use farfork_tests::nodes::{HOME, SOON, demand, demand_few_fetched, json, missing};
use farfork_tests::program::{Program, Source};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, farfork, testbed};
use nix::sys::signal::Signal;

use crate::bed::Bed;

/// Adds the tests.
pub fn add(tests: &mut Tests) {
    tests.add("far::on_demand", missing(), on_demand);
    tests.add("far::prefetched", missing(), prefetched);
    tests.add("far::prefetched_by_record", missing(), prefetched_by_record);
    tests.add("far::python", missing(), python);
    tests.add("far::server_started_anew", missing(), server_started_anew);
    tests.add("far::removed_image", missing(), removed_image);
    tests.add("far::unmounted", missing(), unmounted);
    tests.add("far::copied", missing(), copied);
    tests.add("far::refused_policy", missing(), refused_policy);
    tests.add("far::clone_of_a_clone", missing(), clone_of_a_clone);
}

fn on_demand() -> Outcome {
    let mut bed = Bed::set("on-demand")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let (mut first, pid) = bed.detached(&image, &["--no-prefetch"])?;
    let (fetched, bytes) = bed.fetched()?;
    demand(0 < fetched && fetched < bytes / 4, "a part to be fetched", &(fetched, bytes))?;
    first.send_byte();
    bed.must_pass(pid)?;
    let (all, _) = bed.fetched()?;
    demand(all >= 32 << 20, "all of the program's memory to be fetched", &(all, bytes))?;
    // Nothing is fetched twice: not by a second clone, and not by several at once.
    let others = || -> Outcome {
        let clone = |_| bed.clone(&image, &["--no-prefetch"]);
        let others = (0..3).map(clone).collect::<Outcome<Vec<_>>>()?;
        others.into_iter().try_for_each(|mut other| other.must_pass())
    };
    demand_few_fetched(64 << 10, || Ok(bed.fetched()?.0), others)
}

fn prefetched() -> Outcome {
    let mut bed = Bed::set("prefetched")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let (mut clone, pid) = bed.detached(&image, &[])?;
    testbed::eventually("all of the image", || {
        let (fetched, bytes) = bed.fetched()?;
        Ok(fetched >= bytes)
    })?;
    // Bytes that were fetched twice count twice.
    bed.await_prefetch()?;
    let (before, bytes) = bed.fetched()?;
    clone.send_byte();
    bed.must_pass(pid)?;
    demand_little(&bed, before, bytes)
}

/// Nearly nothing was fetched since. Kernels may drop what no process uses, also without memory pressure (DAMON).
pub fn demand_little(bed: &Bed, before: u64, bytes: u64) -> Outcome {
    let (after, _) = bed.fetched()?;
    demand(after - before < bytes / 8, "hardly a page to be fetched", &(before, after, bytes))
}

/// What a clone was seen to touch is what is fetched, not other pages.
fn prefetched_by_record() -> Outcome {
    let mut bed = Bed::set("by-record")?;
    let image = bed.image(&Program::c("far_pages"))?;
    let pool = bed.pool.display().to_string();
    let restore = ["restore", "--pool", &pool, "--profile", "--detach", &image];
    let mut profiled = Subject::start("clone", &mut bed.on(HOME, &restore)?, SOON)?;
    let pid = bed.pid_of(&mut profiled)?;
    profiled.send(b"tttttttttttt");
    profiled.await_line("NOTE touched 2828")?;
    farfork::must_run(bed.on(HOME, &["kill", &pid.to_string()])?)?;
    testbed::eventually("the record", || {
        let shown = json(bed.on(HOME, &["images", "show", "--json", "--pool", &pool, &image])?)?;
        Ok(shown["access"]["accessed_pages"].as_u64() > Some(12))
    })?;
    bed.serve()?;
    let (mut clone, _) = bed.detached(&image, &[])?;
    bed.await_prefetch()?;
    let (fetched, bytes) = bed.fetched()?;
    demand(fetched < bytes / 4, "a part to be fetched", &(fetched, bytes))?;
    clone.send(b"tttttttttttt");
    clone.await_line("NOTE touched 2828")?;
    // What it touches are 11 MiB of 38.
    demand_little(&bed, fetched, 2828 * farfork_types::PAGE_BYTES)
}

fn python() -> Outcome {
    let mut bed = Bed::set("python")?;
    let image =
        bed.image(&Program::of("rt_python", Source::Script("python3", &[], "rt_python.py")))?;
    bed.serve()?;
    bed.clone(&image, &["--no-prefetch"])?.must_pass()?;
    bed.clone(&image, &[])?.must_pass()
}

fn server_started_anew() -> Outcome {
    let mut bed = Bed::set("anew")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let (mut running, pid) = bed.detached(&image, &["--no-prefetch"])?;
    bed.signal_server(Signal::SIGKILL)?;
    bed.serve()?;
    bed.clone(&image, &["--no-prefetch"])?.must_pass()?;
    running.send_byte();
    bed.must_pass(pid)
}

fn removed_image() -> Outcome {
    let mut bed = Bed::set("removed")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let (mut running, pid) = bed.detached(&image, &["--no-prefetch"])?;
    farfork::forget(&bed.pool, &image)?;
    let said = bed.refused(bed.restore(&image, &[])?)?;
    demand(said.contains("it has no image far/removed"), "no such image", &said)?;
    demand(said.contains(bed.address()), "the address", &said)?;
    // The server has its file open.
    running.send_byte();
    bed.must_pass(pid)
}

fn unmounted() -> Outcome {
    let mut bed = Bed::set("unmounted")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let (mut clone, pid) = bed.detached(&image, &["--no-prefetch"])?;
    let said = bed.refused(bed.unmount()?)?;
    demand(said.contains("end the clones"), "a refusal", &said)?;
    clone.send_byte();
    bed.must_pass(pid)?;
    testbed::eventually("the unmount", || Ok(farfork::run(bed.unmount()?)?.status.success()))?;
    bed.clone(&image, &["--no-prefetch"])?.must_pass()
}

/// An agent that copies images needs the server for the first clone alone, and has all policies.
fn copied() -> Outcome {
    let mut bed = Bed::set("copied")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let mut command = bed.restore(&image, &["--no-prefetch", "--detach", "--tiering", "moa"])?;
    command.env("FARFORK_COPY_IMAGES", "true");
    let mut clone = Subject::start("clone", &mut command, Duration::from_secs(30))?;
    let pid = bed.pid_of(&mut clone)?;
    let (fetched, bytes) = bed.fetched()?;
    demand(fetched >= bytes, "all to be fetched", &(fetched, bytes))?;
    bed.signal_server(Signal::SIGKILL)?;
    clone.send_byte();
    bed.must_pass(pid)
}

/// What the kernel cannot do with such files is refused.
fn refused_policy() -> Outcome {
    let mut bed = Bed::set("policy")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    for policy in ["moa", "hybrid", "copy"] {
        let said = bed.refused(bed.restore(&image, &["--tiering", policy])?)?;
        demand(said.contains("--copy-images"), "a refusal with its remedy", &said)?;
    }
    Ok(())
}

/// A clone of a far image is checkpointed into a pool, and is a process like any other there.
fn clone_of_a_clone() -> Outcome {
    let mut bed = Bed::set("again")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve()?;
    let (mut clone, pid) = bed.detached(&image, &["--no-prefetch"])?;
    clone.send(b"t");
    clone.await_line("NOTE touched 1")?;
    let again = format!("{image}-2");
    let mut command = farfork::checkpoint(&bed.pool, pid.cast_unsigned(), &again, &[])?;
    command.env(farfork::RUN, bed.run());
    farfork::must_run(command)?;
    // Without far memory, from here on.
    clone.send_byte();
    bed.must_pass(pid)?;
    bed.signal_server(Signal::SIGKILL)?;
    let mut command = farfork::restore(&bed.pool, &again, &[])?;
    Subject::start("clone", &mut command, Duration::from_secs(30))?.must_pass()
}
