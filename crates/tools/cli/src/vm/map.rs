//! `farfork vm map`.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use farfork_image::vm::Snapshot;
use farfork_mount::Owner;
use farfork_pageserver::{MEMORY, hold_mapped, serve_mapped};
use farfork_pool::ImageFile;
use farfork_types::PAGE_BYTES;
use rustix::io::{FdFlags, fcntl_setfd};

use super::{files, record, signals};
use crate::CommandResult;
use crate::pool::PoolArg;

/// The command that serves what `farfork vm map` holds.
pub(super) const SERVER: &str = "map-pages";

/// The snapshot to map, and where.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pool: PoolArg,
    /// Name or id of the image.
    image: String,
    /// An empty directory.
    directory: PathBuf,
    /// User id that the files belong to: that of monitors that are not root. Default: the caller's.
    #[arg(long)]
    uid: Option<u32>,
    /// Group id that the files belong to. Default: the caller's.
    #[arg(long)]
    gid: Option<u32>,
}

impl Args {
    fn owner(&self) -> Owner {
        let uid = self.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        Owner { uid, gid: self.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()) }
    }
}

/// What a server gets from its holder.
#[derive(clap::Args)]
pub(crate) struct Served {
    #[command(flatten)]
    args: Args,
    /// Descriptor of the image's file: it may have been removed since.
    #[arg(long)]
    image_file: RawFd,
    /// Descriptor of the other node's file of it.
    #[arg(long)]
    far_file: Option<RawFd>,
    /// Another one was killed.
    #[arg(long)]
    take_over: bool,
}

/// Mounts, and has a process of this program answer.
pub(super) fn run(args: &Args) -> CommandResult {
    let at = std::path::absolute(&args.directory)?;
    demand_empty(&at)?;
    let (served, file) = files::borrow(args.pool.open()?, &args.image)?;
    let memory_bytes = Snapshot::read_from(&file)?.map.memory_bytes();
    let stops = signals::blocked()?;
    let mut command: Vec<OsString> = vec![env::current_exe()?.into()];
    command.extend(["vm", SERVER].map(OsString::from));
    command.push(format!("--image-file={}", inherited(file.file())?).into());
    if let Some(far) = file.far_file() {
        command.push(format!("--far-file={}", inherited(far)?).into());
    }
    let Owner { uid, gid } = args.owner();
    command.extend([format!("--uid={uid}"), format!("--gid={gid}")].map(OsString::from));
    command.extend([file.id.cid.to_string().into(), at.clone().into()]);
    let mut known = record::known(served.image().pool(), file.id.cid)?;
    known.retain(|page| (u64::from(*page) * PAGE_BYTES) < memory_bytes);
    hold_mapped(&at, &command, stops.as_fd(), known)?;
    Ok(ExitCode::SUCCESS)
}

/// A mount would hide what is there.
fn demand_empty(at: &Path) -> Result<(), String> {
    let failed =
        |why: String| format!("cannot mount on {}: {why}; give an empty directory", at.display());
    match at.read_dir().map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(failed("it is not empty".to_owned())),
        // What a holder that was killed has left: it is unmounted.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        Err(error) => Err(failed(farfork_sys::words::of(&error))),
    }
}

/// Has servers inherit a file; its descriptor.
fn inherited(file: &File) -> std::io::Result<RawFd> {
    fcntl_setfd(file, FdFlags::empty())?;
    Ok(file.as_raw_fd())
}

/// Answers for what a holder has mounted.
pub(super) fn serve(served: &Served) -> CommandResult {
    let Served { args, image_file, far_file, take_over } = served;
    let (stops, takes_over) = (signals::blocked()?, *take_over);
    let open = |descriptor: &RawFd| File::open(format!("/proc/self/fd/{descriptor}"));
    let mut file = ImageFile::handed_over(open(image_file)?, args.image.parse()?)?;
    if let Some(far) = far_file {
        file = file.with_far_file(open(far)?)?;
    }
    let snapshot = Snapshot::read_from(&file)?;
    let at = &args.directory;
    let ready = || {
        if !takes_over {
            println!("{}", at.join(MEMORY).display());
        }
        let _ = farfork_mount::close_output();
    };
    serve_mapped(at, (snapshot, file), args.owner(), takes_over, stops.as_fd(), ready)?;
    Ok(ExitCode::SUCCESS)
}
