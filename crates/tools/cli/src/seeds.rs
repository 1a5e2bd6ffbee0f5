//! `farfork prepare`, `farfork reclaim`, `farfork seeds`, and the keeper that `prepare` starts.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use farfork_node::paths;
use farfork_seed::handle::Handle;
use farfork_seed::status::{self, Status};
use farfork_seed::{Report, Settings};
use farfork_types::TlsFiles;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;

use crate::far::{TlsArgs, tls_options};
use crate::output::print_json;
use crate::restore::now_ns;
use crate::{CommandResult, size};

/// How long a seed lives if its maker does not say: MITOSIS keeps its seeds for ten minutes.
const EXPIRES_S: u64 = 600;
/// The longest life of a seed: a year.
const LONGEST_S: u64 = 365 * 24 * 3600;
/// How long a seed that has expired waits for clones that may still fetch pages.
const GRACE: Duration = Duration::from_secs(30);

/// The process, and how long its seed lives.
#[derive(clap::Args)]
pub(crate) struct PrepareArgs {
    /// Pid of the process. It goes on running.
    #[arg(long)]
    pid: i32,
    /// End the seed after so many seconds. Clones that run have 30 more to fetch what they need.
    #[arg(long, value_name = "SECONDS", default_value_t = EXPIRES_S, value_parser = clap::value_parser!(u64).range(..=LONGEST_S))]
    expires: u64,
    /// Address, and port, at which clones fetch pages. Default: any port of the address that this machine
    /// has towards others.
    #[arg(long, value_name = "ADDRESS[:PORT]", env = "FARFORK_SEED_LISTEN", value_parser = listen_at)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Serve nodes on this host by TCP, too. Otherwise they read through shared memory.
    #[arg(long, env = "FARFORK_SEED_TCP_ONLY")]
    tcp_only: bool,
    /// Write the handle to this address of the process, which waits there for it.
    #[arg(long, hide = true, value_name = "ADDRESS")]
    reply_at: Option<u64>,
    /// Make id and key of 64 bits each, as calls from C have them.
    #[arg(long, hide = true)]
    short_key: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// The seed to end.
#[derive(clap::Args)]
pub(crate) struct ReclaimArgs {
    /// The handle that "farfork prepare" has printed.
    #[arg(value_parser = handle)]
    handle: Handle,
    /// Wait so many seconds for nodes whose clones may still fetch pages.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// How to list.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ListArgs {
    #[command(subcommand)]
    command: Option<SeedCommand>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// What to do with a seed.
#[derive(clap::Subcommand)]
enum SeedCommand {
    /// Let a seed live longer, or end sooner.
    Renew(RenewArgs),
}

/// The seed to renew.
#[derive(clap::Args)]
struct RenewArgs {
    /// The handle that "farfork prepare" has printed.
    #[arg(value_parser = handle)]
    handle: Handle,
    /// End the seed after so many seconds from now.
    #[arg(long, value_name = "SECONDS", default_value_t = EXPIRES_S, value_parser = clap::value_parser!(u64).range(..=LONGEST_S))]
    expires: u64,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// What `farfork prepare` asks of the keeper that it starts.
#[derive(clap::Args)]
pub(crate) struct KeeperArgs {
    /// Pid of the process.
    #[arg(long)]
    pid: i32,
    /// Seconds until the seed expires.
    #[arg(long)]
    expires: u64,
    /// Where to listen.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// When the user asked, in nanoseconds of the monotonic clock.
    #[arg(long)]
    requested_ns: u64,
    /// Where in its memory the process waits.
    #[arg(long)]
    reply_at: Option<u64>,
    /// Make id and key of 64 bits each.
    #[arg(long)]
    short_key: bool,
    #[command(flatten)]
    tls: TlsArgs,
    /// Offer no shared memory.
    #[arg(long)]
    tcp_only: bool,
}

fn listen_at(text: &str) -> Result<SocketAddr, String> {
    let address = || Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, 0));
    text.parse().ok().or_else(address).ok_or_else(|| {
        format!("invalid address '{text}' (expected e.g. 10.0.0.1 or 10.0.0.1:7070)")
    })
}

/// Parses a handle.
pub(crate) fn handle(text: &str) -> Result<Handle, String> {
    text.parse().map_err(|error: farfork_seed::handle::HandleError| error.to_string())
}

fn directory() -> PathBuf {
    paths::run_directory().join("seeds")
}

/// Runs `farfork prepare`.
pub(crate) fn prepare(args: &PrepareArgs) -> CommandResult {
    let mut keeper = StartedKeeper::start(args, args.tls.files()?.as_ref())?;
    let report = keeper.report()?;
    if args.json {
        print_json(&report)?;
    } else {
        println!("{}", report.handle);
        eprintln!(
            "seed {} of process {}: {} to fetch, frozen {:.1} ms, {:.1} ms in all; expires in {} s",
            report.id,
            args.pid,
            size::show(report.memory_bytes),
            report.frozen_us as f64 / 1e3,
            report.prepare_us as f64 / 1e3,
            args.expires,
        );
    }
    io::stdout().flush()?;
    keeper.leave()?;
    Ok(ExitCode::SUCCESS)
}

/// A keeper that goes with this process, until it is left.
struct StartedKeeper {
    child: Child,
    /// What it writes to its standard error.
    stderr: File,
}

impl StartedKeeper {
    fn start(args: &PrepareArgs, tls: Option<&TlsFiles>) -> io::Result<StartedKeeper> {
        let stderr = File::from(memfd_create("farfork-keeper", MemfdFlags::CLOEXEC)?);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["seed-keeper", "--pid", &args.pid.to_string()]);
        command.args(["--expires", &args.expires.to_string()]);
        command.args(["--requested-ns", &now_ns().to_string()]);
        if let Some(listen) = args.listen {
            command.args(["--listen", &listen.to_string()]);
        }
        if let Some(address) = args.reply_at {
            command.args(["--reply-at", &address.to_string()]);
        }
        command.args(args.short_key.then_some("--short-key"));
        command.args(args.tcp_only.then_some("--tcp-only"));
        command.args(tls.into_iter().flat_map(tls_options));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr.try_clone()?);
        Ok(StartedKeeper { child: command.current_dir("/").spawn()?, stderr })
    }

    /// What it has made, or why it has made nothing.
    fn report(&mut self) -> Result<Report, Box<dyn Error>> {
        let mut line = String::new();
        if let Some(stdout) = self.child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if let Ok(report) = serde_json::from_str(&line) {
            return Ok(report);
        }
        self.child.wait()?;
        let mut said = String::new();
        self.stderr.rewind()?;
        self.stderr.read_to_string(&mut said)?;
        match said.trim().trim_start_matches("farfork: ") {
            "" => Err("the keeper of the seed was killed; the process goes on".into()),
            said => Err(said.into()),
        }
    }

    /// From here on the seed lives without this process.
    fn leave(&mut self) -> io::Result<()> {
        match self.child.stdin.take() {
            Some(mut stdin) => stdin.write_all(b"\n"),
            None => Ok(()),
        }
    }
}

/// Runs the keeper.
pub(crate) fn keep(args: &KeeperArgs) -> CommandResult {
    // A terminal's signals are for the command.
    let _ = rustix::process::setsid();
    let since = Duration::from_nanos(now_ns().saturating_sub(args.requested_ns));
    let settings = Settings {
        pid: args.pid,
        listen: args.listen,
        expires: Duration::from_secs(args.expires),
        grace: GRACE,
        directory: directory(),
        requested: Instant::now() - since,
        reply_at: args.reply_at,
        short_key: args.short_key,
        tls: args.tls.files()?,
        tcp_only: args.tcp_only,
    };
    farfork_seed::keep(&settings, hand_over)?;
    Ok(ExitCode::SUCCESS)
}

/// Reports the seed to the command, and waits until the user has it.
fn hand_over(report: &Report) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer(&mut stdout, report)?;
    writeln!(stdout)?;
    stdout.flush()?;
    io::stdin().lock().read_exact(&mut [0])?;
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    Ok(rustix::stdio::dup2_stderr(&nothing)?)
}

/// The answer of `farfork reclaim --json`.
#[derive(Serialize)]
struct Reclaimed {
    id: String,
    cut_off: usize,
    cut_off_clones: u32,
}

/// Runs `farfork reclaim`.
pub(crate) fn reclaim(args: &ReclaimArgs) -> CommandResult {
    let (tls, wait) = (args.tls.files()?, Duration::from_secs(args.wait));
    let ended = farfork_seed::reclaim(&args.handle, tls.as_ref(), wait)?;
    let (cut_off, cut_off_clones) = (ended.cut_off, ended.cut_off_clones);
    let id = args.handle.id.to_string();
    if args.json {
        print_json(&Reclaimed { id, cut_off, cut_off_clones })?;
    } else if cut_off > 0 {
        eprintln!(
            "seed {id} has ended after {} s; {cut_off_clones} clones on {cut_off} connected nodes can no longer fetch its pages",
            args.wait
        );
    } else {
        eprintln!("seed {id} has ended");
    }
    Ok(ExitCode::SUCCESS)
}

/// The answer of `farfork seeds renew --json`.
#[derive(Serialize)]
struct Renewed {
    id: String,
    expires_unix_s: u64,
}

fn renew(args: &RenewArgs) -> CommandResult {
    let (tls, expires) = (args.tls.files()?, Duration::from_secs(args.expires));
    let expires_unix_s = farfork_seed::renew(&args.handle, tls.as_ref(), expires)?.expires_unix_s;
    let id = args.handle.id.to_string();
    if args.json {
        print_json(&Renewed { id, expires_unix_s })?;
    } else {
        eprintln!("seed {id} expires in {} s", args.expires);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `farfork seeds`.
pub(crate) fn list(args: &ListArgs) -> CommandResult {
    if let Some(SeedCommand::Renew(args)) = &args.command {
        return renew(args);
    }
    let seeds = status::list(&directory())?;
    if args.json {
        print_json(&seeds)?;
        return Ok(ExitCode::SUCCESS);
    }
    if seeds.is_empty() {
        eprintln!("no seeds on this machine; make one with \"farfork prepare\"");
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "SEED                              STATE    PID              EXPIRES  RESUMES  NODES  CLONES  SENT"
    );
    for seed in &seeds {
        println!("{}", line(seed));
    }
    Ok(ExitCode::SUCCESS)
}

fn line(seed: &Status) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let left = now.map_or(0, |now| seed.expires_unix_s.saturating_sub(now.as_secs()));
    let pid =
        if seed.parent_lives { seed.pid.to_string() } else { format!("{} (exited)", seed.pid) };
    let Status { id, state, resumes, nodes, clones, .. } = seed;
    let (left, sent) = (format!("{left} s"), size::show(seed.served_bytes));
    format!("{id:33} {state:8} {pid:16} {left:8} {resumes:<8} {nodes:<6} {clones:<7} {sent}")
}
