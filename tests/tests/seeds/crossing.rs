//! Each process that has a part in a second hop is killed or stopped, and the cable pulled for good or for a while, in the
//! middle of each step. Whatever happens:
//! no clone reads a wrong byte, nothing hangs, a failure says what failed, and the nodes can do the same again.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farfork_tests::nodes::{AWAY, HOME, SOON, demand, end};
use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::bed::Bed;
use crate::hops::Chain;
use crate::order;

/// How long a victim that was stopped stands still, and a cable that is put back was away: longer than a fetch may take.
const STANDSTILL: Duration = Duration::from_millis(3500);
/// In the short run.
const SAMPLED: usize = 3;

const VICTIMS: [&str; 12] = [
    "first process",
    "first shadow",
    "first keeper",
    "process in between",
    "second shadow",
    "second keeper",
    "far process in between",
    "far process",
    "holder",
    "agent in between",
    "agent",
    CABLE,
];
/// Killed: pulled for good. Stopped: put back later.
const CABLE: &str = "cable";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Prepare,
    Resume,
    Page,
}

const STEPS: [Step; 3] = [Step::Prepare, Step::Resume, Step::Page];

/// What happens to which process, when, and how long after the step has begun.
#[derive(Clone, Copy, Debug)]
struct Cell {
    victim: &'static str,
    signal: Signal,
    step: Step,
    after_us: u64,
}

/// All of them in the long run, some in the short one, others each time; with `FARFORK_CROSSING_VICTIM` those of victims with
/// this in their names. The numbers come from `seed`.
fn cells(seed: u64) -> Vec<Cell> {
    let mut state = seed | 1;
    let mut random = move |below: u64| {
        // Marsaglia's xorshift: any numbers will do.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut all = Vec::new();
    for victim in VICTIMS {
        for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
            for step in STEPS {
                let most_us = if step == Step::Page { 6_000 } else { 45_000 };
                all.push(Cell { victim, signal, step, after_us: random(most_us) });
            }
        }
    }
    let of = std::env::var("FARFORK_CROSSING_VICTIM");
    if let Ok(of) = &of {
        all.retain(|cell| cell.victim.contains(of));
    }
    if std::env::var_os("FARFORK_TEST_LONG").is_none() && of.is_err() {
        while all.len() > SAMPLED {
            all.swap_remove(random(all.len() as u64) as usize);
        }
    }
    all
}

pub fn crossing() -> Outcome {
    let given = std::env::var("FARFORK_CROSSING_SEED").ok().and_then(|text| text.parse().ok());
    let now =
        || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_micros() as u64);
    let seed = given.unwrap_or_else(now);
    for cell in cells(seed) {
        cross(cell).map_err(|trouble| match trouble {
            Trouble::Failed(why) => {
                Trouble::Failed(format!("{cell:?} (FARFORK_CROSSING_SEED={seed}): {why}"))
            }
            other => other,
        })?;
    }
    Ok(())
}

fn pid_of(value: &Value) -> i32 {
    value.as_i64().unwrap_or_default() as i32
}

/// The victim's pid.
fn victim(chain: &Chain, name: &str) -> Outcome<i32> {
    let of_seed = |hop: usize, what: &str| -> Outcome<i32> {
        let all = chain.bed.json(chain.hops[hop].side, &["seeds", "--json"])?;
        let mut all = all.as_array().into_iter().flatten();
        let own = all.find(|status| status["id"] == chain.hops[hop].id());
        Ok(own.map_or(0, |own| pid_of(&own[what])))
    };
    let of_far = |side: &str, what: &str| -> Outcome<i32> {
        let all = chain.bed.json(side, &["far", "status", "--json"])?;
        Ok(all.as_array().and_then(|all| all.first()).map_or(0, |far| pid_of(&far[what])))
    };
    match name {
        "first process" => of_seed(0, "pid"),
        "first shadow" => of_seed(0, "shadow_pid"),
        "first keeper" => of_seed(0, "keeper_pid"),
        "process in between" => of_seed(1, "pid"),
        "second shadow" => of_seed(1, "shadow_pid"),
        "second keeper" => of_seed(1, "keeper_pid"),
        "far process in between" => of_far(AWAY, "pid"),
        "far process" => of_far(HOME, "pid"),
        "agent in between" => chain.bed.agent(AWAY),
        "agent" => chain.bed.agent(HOME),
        _ => of_far(HOME, "holder_pid"),
    }
}

/// What is struck, and how it goes on if it was stopped.
enum Struck {
    Process(i32),
    /// What pulls it, and what puts it back.
    Cable(Box<[Command; 2]>),
}

impl Struck {
    fn of(chain: &Chain, cell: Cell) -> Outcome<Struck> {
        if cell.victim == CABLE {
            let [down, up] = ["down", "up"].map(|state| chain.bed.set_cable(state));
            return Ok(Struck::Cable(Box::new([down, up])));
        }
        let pid = victim(chain, cell.victim)?;
        demand(pid > 1, "a victim", &pid)?;
        Ok(Struck::Process(pid))
    }

    /// Strikes once the step has begun, and lets what was stopped go on later.
    fn strike(mut self, cell: Cell) {
        sleep(Duration::from_micros(cell.after_us));
        match &mut self {
            Struck::Process(pid) => end(*pid, cell.signal),
            Struck::Cable(commands) => drop(commands[0].status()),
        }
        if cell.signal == Signal::SIGSTOP {
            sleep(STANDSTILL);
            match &mut self {
                Struck::Process(pid) => end(*pid, Signal::SIGCONT),
                Struck::Cable(commands) => drop(commands[1].status()),
            }
        }
    }
}

fn cross(cell: Cell) -> Outcome {
    let mut chain = Chain::on(Bed::hasty("crossing")?, 1)?;
    // So that there is a far process on the node of the last clones.
    let (mut waiting, waiting_pid) = chain.clone_on(HOME, &chain.hops[1].seed)?;
    let struck = Struck::of(&chain, cell)?;
    let striking = |struck: Struck| std::thread::spawn(move || struck.strike(cell));
    match cell.step {
        Step::Prepare => {
            let pid = victim(&chain, "process in between")?.to_string();
            let arguments = ["prepare", "--json", "--listen", "10.78.0.2", "--pid", &pid];
            let mut command = chain.bed.on(AWAY, &arguments)?;
            command.stdin(std::process::Stdio::null());
            let strike = striking(struck);
            let output = farfork::run(command)?;
            let _ = strike.join();
            let text = farfork::text(&output);
            match output.status.code() {
                Some(0) => demand(text.contains("\"handle\""), "a handle", &text)?,
                Some(1) => demand(text.starts_with("farfork: "), "why", &text)?,
                _ => return Err(Trouble::during("farfork prepare", text)),
            }
        }
        Step::Resume => {
            let handle = chain.hops[1].seed.handle.clone();
            let mut command = chain.bed.on(HOME, &["resume", &handle])?;
            let mut clone = Subject::start("clone", &mut command, SOON)?;
            let strike = striking(struck);
            clone.send_byte();
            let ended = clone.finish()?;
            let _ = strike.join();
            let is_right = ended.code() == Some(0) && clone.said("PASS");
            judge(is_right, &clone.transcript())?;
        }
        Step::Page => {
            waiting.send(b"v");
            let _ = striking(struck).join();
        }
    }
    // It has all that it needs, or gets an error.
    waiting.send(b"v\n");
    let ended = match chain.end_of(HOME, waiting_pid) {
        // Clones are those of an agent, and end with it: nothing is known of them any more.
        Err(_) if cell.victim == "agent" => Value::from("the agent was killed, or cannot say more"),
        ended => ended?,
    };
    waiting.hear(Duration::from_millis(50));
    let text = format!("{ended} {}", waiting.transcript());
    judge(ended["status"] == 0, &text)?;
    if cell.signal == Signal::SIGSTOP
        && !cell.victim.contains("keeper")
        && !["far process", "agent", CABLE].contains(&cell.victim)
    {
        demand(ended["status"] == 0, "a clone that passes, as its pages can be fetched", &text)?;
    }
    if cell.victim == CABLE {
        chain.bed.mend()?;
    }
    for hop in chain.hops.drain(..) {
        drop(hop.subject);
        let wait = ["reclaim", "--json", "--wait", "0", &hop.seed.handle];
        let _ = farfork::run(chain.bed.on(hop.side, &wait)?);
    }
    again(&chain)
}

/// No wrong byte, and a failure says why.
fn judge(has_passed: bool, text: &str) -> Outcome {
    demand(!text.contains("FAIL:"), "no wrong byte", &text)?;
    let says_why = ["could not be read", "\"cause\":\"", "cannot ", "seed ", "agent"];
    let is_explained = says_why.iter().any(|why| text.contains(why));
    demand(has_passed || is_explained, "an explained failure", &text)
}

/// The nodes do all of it again.
fn again(chain: &Chain) -> Outcome {
    let mut parent = chain.bed.parent(&Program::c("seed_hops"))?;
    let seed = chain.bed.prepare(&parent, &[])?;
    let mut clone =
        Subject::start("clone", &mut chain.bed.on(AWAY, &["resume", &seed.handle])?, SOON)?;
    clone.must_pass()?;
    let (mut back, pid) = chain.clone_on(HOME, &seed)?;
    order(&mut back, b"v")?;
    back.send_byte();
    demand(chain.end_of(HOME, pid)?["status"] == 0, "a clone that passes", &())?;
    chain.bed.json(HOME, &["reclaim", "--json", "--wait", "0", &seed.handle])?;
    let is_dead = |pid: &i32| farfork_sys::proc::state(*pid) == Some('Z');
    testbed::eventually("no copy is left alive", || {
        Ok(crate::children(&parent).iter().all(is_dead))
    })?;
    parent.must_pass()
}
