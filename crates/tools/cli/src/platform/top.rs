//! `farfork top`.

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use farfork_platform::scheduler::snapshot::Snapshot;
use hyper::Method;

use super::remote::{Place, Question};
use super::view;
use crate::CommandResult;
use crate::output::print_json;

/// How to show it.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Show it once, and end; so it is where stdout is no terminal.
    #[arg(long)]
    once: bool,
    /// Print one JSON document, once.
    #[arg(long)]
    json: bool,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let mut seen = look(args)?;
    if args.json {
        print_json(&seen)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.once || !io::stdout().is_terminal() {
        return told(&format!("{}\n", view::lines(&seen).join("\n")));
    }
    loop {
        told(&screen(args.place.url(), &view::lines(&seen)))?;
        thread::sleep(Duration::from_secs(args.interval));
        seen = look(args)?;
    }
}

fn look(args: &Args) -> Result<Snapshot, Box<dyn Error>> {
    let (method, path, doing) = (Method::GET, "/dashboard/snapshot", "looking");
    let answer = args.place.ask(Question { method, path, body: None, doing })?;
    if answer.status != 200 {
        return Err(answer.refusal().into());
    }
    serde_json::from_value(answer.body).map_err(|wrong| {
        let url = args.place.url();
        let words = "is no platform of farfork, or one of another version: what it tells";
        format!("{url} {words} is not to be read: {wrong}").into()
    })
}

/// Rewrites the terminal from its first line; what was longer before is cleared line by line, so
/// that nothing flickers.
fn screen(url: &str, lines: &[String]) -> String {
    let mut text = format!("\x1b[H{url}: ");
    for line in lines {
        text += line;
        text += "\x1b[K\n";
    }
    text + "\x1b[J"
}

fn told(text: &str) -> CommandResult {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        done => Ok(done.map(|()| ExitCode::SUCCESS)?),
    }
}
