//! Servers and tools of other projects, with their threads, data, locks and clients.

mod bash;
mod nginx;
mod postgres;
mod redis;
mod serving;
mod sqlite;

use farfork_tests::driver::Tests;
use farfork_tests::{Outcome, Trouble, compile, testbed};
use std::process::ExitCode;

/// A test: its name, what it needs to be installed, and itself.
type Case = (&'static str, &'static str, fn() -> Outcome);

const CASES: &[Case] = &[
    ("redis", redis::SERVER, redis::is_cloned),
    ("redis_in_ghosts", redis::SERVER, redis::is_cloned_in_ghosts),
    ("nginx_without_workers", nginx::SERVER, nginx::is_cloned),
    ("nginx_with_workers", nginx::SERVER, nginx::with_workers_is_cloned),
    ("nginx_in_ghosts", nginx::SERVER, nginx::is_cloned_in_ghosts),
    ("sqlite_idle", sqlite::SHELL, sqlite::idle_is_cloned),
    ("sqlite_journal_beside", sqlite::SHELL, sqlite::journal_beside_its_parent),
    ("sqlite_journal_killed", sqlite::SHELL, sqlite::journal_after_a_kill),
    ("sqlite_journal_overtaken", sqlite::SHELL, sqlite::journal_overtaken),
    ("sqlite_wal_beside", sqlite::SHELL, sqlite::wal_beside_its_parent),
    ("sqlite_wal_killed", sqlite::SHELL, sqlite::wal_after_a_kill),
    ("sqlite_wal_overtaken", sqlite::SHELL, sqlite::wal_overtaken),
    ("sqlite_journal_in_ghosts", sqlite::SHELL, sqlite::journal_in_ghosts),
    ("sqlite_wal_in_ghosts", sqlite::SHELL, sqlite::wal_in_ghosts),
    ("postgres", postgres::INITDB, postgres::is_cloned),
    ("bash_with_pipeline", "bash", bash::with_pipeline_is_cloned),
];

fn missing(tool: &str) -> Option<String> {
    match testbed::possible().and_then(|()| compile::tool(tool).map(drop)) {
        Err(Trouble::Skipped(reason)) => Some(reason),
        _ => None,
    }
}

fn main() -> ExitCode {
    let mut tests = Tests::begin();
    for (name, tool, run) in CASES {
        tests.add(format!("servers::{name}"), missing(tool), run);
    }
    tests.run()
}
