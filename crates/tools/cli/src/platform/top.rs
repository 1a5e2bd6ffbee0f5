//! `farfork top`.

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use farfork_platform::scheduler::snapshot::Snapshot;
use hyper::Method;

use super::remote::{Request, UrlArg};
use super::view;
use crate::CommandResult;
use crate::output::print_json;

/// How to show the platform.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    platform: UrlArg,
    /// Show it once, and exit. The default if stdout is not a terminal.
    #[arg(long)]
    once: bool,
    /// Print one JSON document, once.
    #[arg(long)]
    json: bool,
    /// Interval of updates, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let mut snapshot = read_snapshot(args)?;
    if args.json {
        print_json(&snapshot)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.once || !io::stdout().is_terminal() {
        return print(&format!("{}\n", view::lines(&snapshot).join("\n")));
    }
    loop {
        print(&screen(args.platform.url(), &view::lines(&snapshot)))?;
        thread::sleep(Duration::from_secs(args.interval));
        snapshot = read_snapshot(args)?;
    }
}

fn read_snapshot(args: &Args) -> Result<Snapshot, Box<dyn Error>> {
    let (method, path, doing) = (Method::GET, "/dashboard/snapshot", "reading");
    let response = args.platform.send(Request { method, path, body: None, doing })?;
    if response.status != 200 {
        return Err(response.refusal().into());
    }
    serde_json::from_value(response.body).map_err(|wrong| {
        let url = args.platform.url();
        format!("cannot read the state of {url}: not a platform of this farfork version: {wrong}")
            .into()
    })
}

/// Rewrites the terminal from its first line. Each line clears its own rest, so that nothing flickers.
fn screen(url: &str, lines: &[String]) -> String {
    let mut text = format!("\x1b[H{url}: ");
    for line in lines {
        text += line;
        text += "\x1b[K\n";
    }
    text + "\x1b[J"
}

fn print(text: &str) -> CommandResult {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of the pipe has exited.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        done => Ok(done.map(|()| ExitCode::SUCCESS)?),
    }
}
