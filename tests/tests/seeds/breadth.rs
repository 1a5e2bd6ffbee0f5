//! The programs that check themselves, over two hops: most of a clone's memory is then its ancestor's, in mappings of
//! all kinds.

use farfork_tests::nodes::{AWAY, HOME, SOON, demand};
use farfork_tests::program::{Expect, Program, Source};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, table};

use serde_json::Value;

use crate::bed::Seed;
use crate::hops::Chain;

/// In the short run.
const SAMPLED: [&str; 3] = ["dontneed", "two_mib_edges", "guard_pages"];

/// Programs of one process that can be cloned from their clones, with nothing around them.
fn is_meant(program: &Program) -> bool {
    let is_plain = !program.is_tree && !program.own_network && program.options.is_empty();
    let stands_alone = program.env.is_empty() && program.preload.is_none();
    let can_again = !program.has_fresh_clones && !program.uses_up_files;
    let is_fast = !matches!(program.source, Source::Script("java", ..));
    matches!(program.expect, Expect::Passes) && is_plain && stands_alone && can_again && is_fast
}

pub fn two_hops() -> Outcome {
    let is_long = std::env::var_os("FARFORK_TEST_LONG").is_some();
    let of = std::env::var("FARFORK_BREADTH_PROGRAM").ok();
    let is_wanted = |program: &&Program| match &of {
        Some(of) => program.name == of,
        None => is_long || SAMPLED.contains(&program.name),
    };
    let meant = table::all().filter(|program| is_meant(program)).filter(is_wanted);
    let mut chain = Chain::of("breadth", 0)?;
    let (mut passed, mut refused, mut failed) = (0, Vec::new(), Vec::new());
    for program in meant {
        match cross(&mut chain, program) {
            Ok(()) => passed += 1,
            Err(Trouble::Skipped(why)) => refused.push(format!("{}: {why}", program.name)),
            Err(Trouble::Failed(why)) => failed.push(format!("{}: {why}", program.name)),
        }
    }
    let lines = |all: &[String]| all.join("\n");
    if !failed.is_empty() {
        return Err(Trouble::Failed(format!("{} passed\n{}", passed, lines(&failed))));
    }
    println!("{passed} programs passed, {} not tried:\n{}", refused.len(), lines(&refused));
    demand(of.is_some() || passed >= SAMPLED.len(), "programs that pass", &passed)
}

fn cross(chain: &mut Chain, program: &Program) -> Outcome {
    let directory = chain.bed.directory().join(program.name);
    std::fs::create_dir(&directory)
        .map_err(|error| Trouble::during("making a directory", error))?;
    let mut parent = chain.bed.parent_in(program, &directory)?;
    let pid = parent.pid().to_string();
    // What cannot be prepared is another test's matter.
    let made = farfork::run(chain.bed.on(HOME, &["prepare", "--json", "--pid", &pid])?)?;
    if made.status.code() != Some(0) {
        return Err(Trouble::Skipped(farfork::text(&made).lines().take(2).collect()));
    }
    let report: Value = serde_json::from_slice(&made.stdout)
        .map_err(|_| Trouble::during("farfork prepare", farfork::text(&made)))?;
    let handle = report["handle"].as_str().unwrap_or_default().to_owned();
    let first = Seed { handle, report };
    let (mut clone, pid) = chain.clone_on(AWAY, &first)?;
    // It may have been heard already, beside the pid.
    if let Some(line) = program.settles.filter(|line| !clone.said(line)) {
        clone.await_line(line)?;
    }
    let second = chain.prepare(AWAY, pid)?;
    let mut command = chain.bed.on(HOME, &["resume", &second.handle])?;
    let begun = Subject::start("clone of a clone", &mut command, SOON);
    let passed = begun.and_then(|mut again| again.must_pass());
    clone.send_byte();
    let ended = chain.end_of(AWAY, pid);
    let of_parent = parent.must_pass();
    for (side, seed) in [(AWAY, &second), (HOME, &first)] {
        let wait = ["reclaim", "--json", "--wait", "0", &seed.handle];
        let _ = farfork::run(chain.bed.on(side, &wait)?);
    }
    passed?;
    let ended = ended?;
    demand(ended["status"] == 0, "a clone in between that passes", &(ended, clone.transcript()))?;
    of_parent
}
