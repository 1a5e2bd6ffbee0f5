//! The gateway of a platform, killed at every step of a call for which an instance is started: the next gateway
//! runs accepted calls, a waiting client gets an error soon, and the function works.
//!
//! The steps are those of all threads together. They are counted, although their order differs from run to run.

use std::collections::BTreeSet;
use std::fs;
use std::process::Output;
use std::time::Instant;

use farfork_tests::stalls::Stalls;
use farfork_tests::{Outcome, farfork};
use serde_json::Value;

use crate::Case;
use crate::platform::Platform;
use crate::scene::{await_until, demand, during, fail, failed_in_words};
use crate::stage::{self, SOON, stride, took};
use crate::tracer::{Blow, Role, Tracer};

pub const CASES: &[Case] = &[
    ("of_a_cold_start", || of_cold_starts(Caller::Waits)),
    ("of_a_cold_start_that_nobody_awaits", || of_cold_starts(Caller::Leaves)),
    ("of_a_clone", || of_clones(Caller::Waits)),
    ("of_a_clone_that_nobody_awaits", || of_clones(Caller::Leaves)),
];

const FUNCTION: &str = "
def main(args):
    print('made')
    return {'twice': 2 * args['n']}
";
/// After so many there is an image.
const CALLS: u64 = 17;
/// Steps of which one is tried if time is short.
const STRIDE: u64 = 61;

/// The client that calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// Until there is a result.
    Waits,
    /// With the id of what was accepted.
    Leaves,
}

/// A new function each time.
fn of_cold_starts(caller: Caller) -> Outcome {
    let mut platform = Platform::set(FUNCTION)?;
    everywhere(&mut platform, |platform, blow| {
        let name = format!("new{}", blow.step);
        platform.deploy(&name)?;
        let struck = strike(platform, (&name, caller), blow)?;
        platform.works(&["functions", "rm", &name])?;
        Ok(struck)
    })?;
    platform.strike()
}

/// The next gateway has an image of the function, and no instance.
fn of_clones(caller: Caller) -> Outcome {
    let mut platform = Platform::set(FUNCTION)?;
    platform.deploy("same")?;
    for n in 0..CALLS {
        call(&platform, "same", n)?;
    }
    everywhere(&mut platform, |platform, blow| {
        platform.replace_gateway()?;
        strike(platform, ("same", caller), blow)
    })?;
    platform.strike()
}

fn everywhere(
    platform: &mut Platform,
    mut strike: impl FnMut(&mut Platform, Blow) -> Outcome<bool>,
) -> Outcome {
    stage::everywhere((Role::Gateway, Role::Gateway), false, stride(STRIDE), |blow| {
        let outcome = strike(platform, blow);
        platform.with_log(outcome)
    })
}

/// Calls a function, and kills the gateway at a step of that; whether there were so many.
fn strike(platform: &mut Platform, (name, caller): (&str, Caller), blow: Blow) -> Outcome<bool> {
    let n = blow.step;
    let how = if caller == Caller::Waits { "--json" } else { "--no-wait" };
    let (begun, stalls) = (Instant::now(), Stalls::now());
    let tracer = Tracer::follow((platform.gateway(), Role::Gateway), blow)?;
    let output = platform.ask(&["invoke", name, how, "-p", "n", &n.to_string()])?;
    let known = Instant::now();
    let is_good = output.status.success();
    let accepted = (is_good && caller == Caller::Leaves)
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    if let Some(id) = &accepted {
        let has_ended = || has_ended(platform.gateway());
        await_until("the call is made", || has_ended() || record(platform, id).is_ok())?;
    }
    let struck = tracer.finish()?;

    let took = took(struck.unwrap_or(begun), known, &stalls);
    demand(took < SOON, format!("took {took:?}\n{}", farfork::text(&output)))?;
    if struck.is_some() {
        let before = ghosts(platform)?;
        platform.replace_gateway()?;
        let left: Vec<String> = ghosts(platform)?.intersection(&before).cloned().collect();
        demand(left.is_empty(), format!("expected no ghosts of the gateway before, saw {left:?}"))?;
    }
    match (is_good, &accepted) {
        (true, Some(id)) => was_made(platform, id)?,
        (true, None) => is_right(&output, n)?,
        (false, _) => {
            demand(struck.is_some(), format!("expected an answer: {}", farfork::text(&output)))?;
            failed_in_words("invoke", &output, 1, &[])?;
        }
    }
    call(platform, name, n)?;
    Ok(struck.is_some())
}

/// The ids of the node's ghosts.
fn ghosts(platform: &Platform) -> Outcome<BTreeSet<String>> {
    let text = platform.works(&["ghost", "list", "--json"])?;
    let reported: Vec<Value> = serde_json::from_str(&text).map_err(during("reading ghosts"))?;
    Ok(reported.iter().filter_map(|ghost| ghost["id"].as_str()).map(str::to_owned).collect())
}

/// Demands that a call that was accepted is made, sooner or later.
fn was_made(platform: &Platform, id: &str) -> Outcome {
    await_until("the call is made", || record(platform, id).is_ok())?;
    let reported = record(platform, id)?;
    let is_made = reported["status"] == "success" && reported["logs"].to_string().contains("made");
    demand(is_made, format!("expected a call that was made, saw {reported}"))
}

fn record(platform: &Platform, id: &str) -> Outcome<Value> {
    let text = platform.works(&["logs", "--json", id])?;
    let reported: Value = serde_json::from_str(&text).map_err(during("reading a record"))?;
    Ok(reported[0].clone())
}

/// Calls a function, which has to be right.
fn call(platform: &Platform, name: &str, n: u64) -> Outcome {
    is_right(&platform.ask(&["invoke", name, "--json", "-p", "n", &n.to_string()])?, n)
}

fn is_right(output: &Output, n: u64) -> Outcome {
    let reported: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if output.status.success() && reported["response"]["result"]["twice"] == 2 * n {
        return Ok(());
    }
    fail(format!("expected twice {n}: {}, {}", output.status, farfork::text(output)))
}

fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |text| text.contains(") Z "))
}
