//! `farfork far`, and `restore --far`.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use farfork_fabric::rdma::Device;
use farfork_far::control::Status;
use farfork_far::place::Place;
use farfork_far::{
    FarProcessSettings, FarServer, Offers, SourceAt, certificates_at, holder, key_at, key_from,
    mount_command_of, new_key_at, prefetch, run_far_process, start, write_key_at,
};
use farfork_node::paths;
use farfork_types::{Cid, TlsFiles};

use crate::clone_counts::CloneCounts;
use crate::output::print_json;
use crate::pool::PoolArg;
use crate::{CommandResult, size};

/// What to do with far memory.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Serve the images of a pool to other nodes.
    Serve(ServeArgs),
    /// Show the sources that this machine uses, and what was fetched from them.
    Status {
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Unmount the images of a source. Clones must not use them.
    Unmount {
        /// The source.
        #[arg(value_name = "ADDRESS:PORT")]
        source: String,
    },
    /// Mount the images of a source. "farfork restore --far" starts this by itself.
    #[command(hide = true)]
    Mount(MountArgs),
    /// Answer the reads of a mount, whose device is standard input. "farfork far mount" starts this.
    #[command(hide = true)]
    Answer {
        #[command(flatten)]
        mount: MountArgs,
        /// Go on where an earlier process was killed.
        #[arg(long)]
        take_over: bool,
    },
    /// Read pages of a far image, which stand on standard input.
    #[command(hide = true)]
    Prefetch {
        /// The image's file.
        path: PathBuf,
    },
}

/// What to serve, and where.
#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pool: PoolArg,
    /// Address to listen on. With port 0 the kernel chooses a port. The address is printed.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7473")]
    listen: String,
    /// File with the key that other nodes need, made if it does not exist; - for the first line of stdin.
    /// Default: far.key in the run directory.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Serve nodes on this host by TCP, too. Otherwise they read through shared memory.
    #[arg(long)]
    tcp_only: bool,
    /// Offer reads by this RDMA device, such as mlx5_0. The bytes that it carries are not encrypted. Nodes with
    /// certificates do not use it.
    #[arg(long, value_name = "DEVICE")]
    rdma: Option<String>,
    /// How much of images is pinned for that device at most. Images beyond that are read by TCP. Default: half of the
    /// machine's memory.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "rdma")]
    rdma_limit: Option<u64>,
}

/// What to mount.
#[derive(clap::Args)]
pub(crate) struct MountArgs {
    /// Directory of the far pool.
    #[arg(long, value_name = "DIR")]
    place: PathBuf,
    /// The source of all images. Without it, each image has one of its own.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "key")]
    source: Option<String>,
    /// File with the key.
    #[arg(long, value_name = "FILE", requires = "source")]
    key: Option<PathBuf>,
    /// The certificate of this node.
    #[arg(long, value_name = "FILE", requires_all = ["source", "tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// Its private key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The authority.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Limit of a read, in milliseconds.
    #[arg(long, value_name = "MS")]
    deadline_ms: u64,
    /// Unmount and exit after so many seconds without clones.
    #[arg(long, value_name = "SECONDS")]
    idle_s: Option<u64>,
    /// Go on as the holder of what is mounted there; standard input is its device.
    #[arg(long, hide = true)]
    adopt: bool,
    /// The descriptor of the mount's lock.
    #[arg(long, hide = true)]
    holder_lock: Option<i32>,
}

/// What proves a node to others, beside the shared key.
#[derive(clap::Args)]
pub(crate) struct TlsArgs {
    /// Prove this node by the certificate in FILE (PEM), beside the key, and demand one of the other node. Give
    /// all three options at both nodes.
    #[arg(long, value_name = "FILE", env = "FARFORK_TLS_CERT", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM, mode 0600).
    #[arg(long, value_name = "FILE", env = "FARFORK_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Certificates of the authorities (CA) that sign those of other nodes (PEM).
    #[arg(long, value_name = "FILE", env = "FARFORK_TLS_CA", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
}

/// These files as options of another command of farfork.
pub(crate) fn tls_options(files: &TlsFiles) -> [&OsStr; 6] {
    let TlsFiles { cert, key, ca } = files;
    [
        "--tls-cert".as_ref(),
        cert.as_ref(),
        "--tls-key".as_ref(),
        key.as_ref(),
        "--tls-ca".as_ref(),
        ca.as_ref(),
    ]
}

impl TlsArgs {
    /// The files, which must be usable.
    pub(crate) fn files(&self) -> Result<Option<TlsFiles>, Box<dyn Error>> {
        let (Some(cert), Some(key), Some(ca)) = (&self.tls_cert, &self.tls_key, &self.tls_ca)
        else {
            return Ok(None);
        };
        // Other processes, in other directories, read them.
        let [cert, key, ca] = [cert, key, ca].map(std::path::absolute);
        let files = TlsFiles { cert: cert?, key: key?, ca: ca? };
        certificates_at(&files)?;
        Ok(Some(files))
    }
}

/// Where an image is restored from that no pool of this machine has.
#[derive(clap::Args)]
pub(crate) struct FarArgs {
    /// Restore an image of the node that serves it there ("farfork far serve"). Its pages are fetched when
    /// clones touch them, and in the background before that.
    #[arg(long = "far", value_name = "ADDRESS:PORT", conflicts_with = "path")]
    source: Option<String>,
    /// File with the key of that node; - for the first line of stdin. Default: far.key in the run directory.
    #[arg(long = "far-key", value_name = "FILE", env = "FARFORK_FAR_KEY")]
    key: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Limit of a read from that node, in milliseconds. After it, the clone gets SIGBUS. The first restore
    /// from a source decides.
    #[arg(long, value_name = "MS", env = "FARFORK_FAR_DEADLINE_MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(50..=600_000))]
    far_deadline_ms: u64,
    /// Fetch pages only when clones touch them.
    #[arg(long, requires = "source")]
    no_prefetch: bool,
}

/// A far pool, and an image in it.
pub(crate) struct FarPool {
    pub(crate) path: PathBuf,
    pub(crate) cid: Cid,
}

/// Runs the subcommand.
pub(crate) fn run(command: &Command) -> CommandResult {
    match command {
        Command::Serve(args) => serve(args),
        Command::Status { json } => status(*json),
        Command::Unmount { source } => {
            start::stop(&Place::of(&paths::run_directory(), source))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Mount(args) => mount(args),
        Command::Answer { mount, take_over } => answer(mount, *take_over),
        Command::Prefetch { path } => {
            prefetch::run(path)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn serve(args: &ServeArgs) -> CommandResult {
    let (path, tls) = (args.pool.path()?, args.tls.files()?);
    let key_path = key_path(args.key.as_deref());
    if args.key.is_none() {
        DirBuilder::new().recursive(true).mode(0o700).create(paths::run_directory())?;
    }
    let is_given = key_path == Path::new(STDIN);
    let key = if is_given { key_from(stdin_unbuffered()?)? } else { new_key_at(&key_path)? };
    let run = paths::run_directory();
    let local = (!args.tcp_only).then_some(&*run);
    if local.is_some() {
        // Without it there is no shared memory, which is shown below.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(&run);
    }
    let rdma = args.rdma.as_deref().map(Device::named).transpose()?;
    let by_device = rdma.as_ref().map_or_else(String::new, |device| {
        format!(", and by RDMA, unencrypted, with the device {}", device.name())
    });
    let half = || rustix::system::sysinfo().totalram / 2;
    let rdma = rdma.map(|device| (device, args.rdma_limit.unwrap_or_else(half)));
    let offers = Offers { local, rdma };
    let server = FarServer::start(&args.listen, &[&path], key, tls.as_ref(), offers)?;
    println!("{}", server.address());
    let place =
        if is_given { "from stdin".to_owned() } else { format!("in {}", key_path.display()) };
    eprintln!(
        "serving the images of {} at {}{}{by_device}; other nodes need the key {place}{}",
        path.display(),
        server.address(),
        if server.local().is_some() { ", and on this host by shared memory" } else { "" },
        if tls.is_some() { ", and a certificate" } else { "" },
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            _ = terminate.recv() => Ok(()),
            pressed = tokio::signal::ctrl_c() => pressed,
        }
    })?;
    drop(server);
    Ok(ExitCode::SUCCESS)
}

fn key_path(given: Option<&Path>) -> PathBuf {
    given.map_or_else(|| paths::run_directory().join("far.key"), Path::to_owned)
}

/// The file name that means stdin.
pub(crate) const STDIN: &str = "-";

/// Stdin without a buffer: what follows the key is for the clone.
fn stdin_unbuffered() -> std::io::Result<File> {
    Ok(File::from(std::io::stdin().as_fd().try_clone_to_owned()?))
}

/// The file of a node's key, given as an option. A key on stdin is kept in a file of the run directory, which
/// only its owner can read: it is read again for each new connection.
pub(crate) fn key_file(given: Option<&Path>, place: &Place) -> Result<PathBuf, Box<dyn Error>> {
    if given != Some(Path::new(STDIN)) {
        return Ok(std::path::absolute(key_path(given))?);
    }
    let key = key_from(stdin_unbuffered()?)?;
    DirBuilder::new().recursive(true).mode(0o700).create(place.directory())?;
    let path = place.directory().join("key");
    write_key_at(&path, &key)?;
    Ok(path)
}

fn mount(args: &MountArgs) -> CommandResult {
    let place = Place::at(&args.place);
    let command = args.command("answer")?;
    if args.adopt {
        holder::adopt(&place, &command, args.holder_lock)?
    } else {
        holder::hold(&place, &command)?
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(args: &MountArgs, take_over: bool) -> CommandResult {
    let counts = CloneCounts::default();
    let settings = FarProcessSettings {
        place: Place::at(&args.place),
        source: args.source_at(),
        deadline: Duration::from_millis(args.deadline_ms),
        idle: args.idle_s.map(Duration::from_secs),
        prefetch: vec![std::env::current_exe()?, "far".into(), "prefetch".into()],
        count_clones: Box::new(move || counts.now()),
        holder: args.adopting()?,
        holder_lock: args.holder_lock,
    };
    run_far_process(settings, take_over)?;
    Ok(ExitCode::SUCCESS)
}

fn status(json: bool) -> CommandResult {
    let places = Place::all(&paths::run_directory());
    // Where no far process runs, nothing is mounted.
    let all: Vec<Status> = places.iter().filter_map(|place| start::status(place).ok()).collect();
    if json {
        print_json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{:<32} {:<9} {:<9} {:>8} {:>10} {:>10} {:>7}",
        "SOURCE", "TRANSPORT", "ONE-SIDED", "IMAGES", "FETCHED", "OF", "FAILED"
    );
    for mount in &all {
        // Those that are named for one image stand alone.
        let mut sources: Vec<&str> = mount.images.iter().map(|image| &*image.source).collect();
        sources.sort_unstable();
        sources.dedup();
        for source in sources {
            let images = || mount.images.iter().filter(|image| image.source == source);
            println!(
                "{source:<32} {:<9} {:<9} {:>8} {:>10} {:>10} {:>7}",
                images().find_map(|image| image.transport.as_deref()).unwrap_or("-"),
                one_sided(images().filter_map(|image| image.one_sided)),
                images().count(),
                size::show(images().map(|image| image.fetched_bytes).sum()),
                size::show(images().map(|image| image.bytes).sum()),
                mount.failed_reads
            );
            let mut reasons: Vec<&str> =
                images().filter_map(|image| image.detour.as_deref()).collect();
            reasons.sort_unstable();
            for same in reasons.chunk_by(|one, next| one == next) {
                println!("    {} of {} not by RDMA: {}", same.len(), images().count(), same[0]);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether reads of images are one-sided, in a word.
fn one_sided(images: impl Iterator<Item = bool>) -> &'static str {
    let (mut yes, mut no) = (false, false);
    images.for_each(|one| if one { yes = true } else { no = true });
    match (yes, no) {
        (true, true) => "partly",
        (true, false) => "yes",
        (false, true) => "no",
        (false, false) => "-",
    }
}

impl MountArgs {
    /// This program with these arguments, as another command.
    fn command(&self, name: &str) -> std::io::Result<Vec<OsString>> {
        let (program, place) = (std::env::current_exe()?, Place::at(&self.place));
        let source = self.source_at();
        let (source, deadline_ms) = (source.as_ref(), self.deadline_ms);
        Ok(mount_command_of(&program, name, &place, source, deadline_ms, self.idle_s))
    }

    /// This program as the holder of what is mounted.
    fn adopting(&self) -> std::io::Result<Vec<OsString>> {
        let lock = self.holder_lock.map(|lock| ["--holder-lock".into(), lock.to_string().into()]);
        let options = std::iter::once("--adopt".into()).chain(lock.into_iter().flatten());
        Ok(self.command("mount")?.into_iter().chain(options).collect())
    }

    fn source_at(&self) -> Option<SourceAt> {
        let (address, key) = self.source.clone().zip(self.key.clone())?;
        let files = self.tls_cert.clone().zip(self.tls_key.clone()).zip(self.tls_ca.clone());
        let tls = files.map(|((cert, key), ca)| TlsFiles { cert, key, ca });
        Some(SourceAt { address, key, tls })
    }
}

/// What starts a far process that serves images of several nodes at `place`, until it has had no clones for
/// `idle_s`.
pub(crate) fn mount_while_used(
    place: &Place,
    deadline_ms: u64,
    idle_s: u64,
) -> std::io::Result<Vec<OsString>> {
    let program = std::env::current_exe()?;
    Ok(mount_command_of(&program, "mount", place, None, deadline_ms, Some(idle_s)))
}

impl FarArgs {
    /// The far pool and the image in it, if the image comes from another node.
    pub(crate) fn find(&self, image: &str) -> Result<Option<FarPool>, Box<dyn Error>> {
        let Some(source) = &self.source else { return Ok(None) };
        let place = Place::of(&paths::run_directory(), source);
        let key = key_file(self.key.as_deref(), &place)?;
        // A key that cannot be used is reported here.
        key_at(&key)?;
        let (program, tls) = (std::env::current_exe()?, self.tls.files()?);
        let at = SourceAt { address: source.clone(), key, tls };
        let deadline_ms = self.far_deadline_ms;
        let command = mount_command_of(&program, "mount", &place, Some(&at), deadline_ms, None);
        start::ensure_with(&place, &command, at.tls.as_ref())?;
        let cid = start::find(&place, image, !self.no_prefetch)?;
        Ok(Some(FarPool { path: place.pool(), cid: cid.parse()? }))
    }
}
