//! The other node's copy of an image of which parts lie there, as a file here.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use farfork_image::tier::FarNode;
use farfork_types::{Cid, TlsFiles};

use crate::error::FarError;
use crate::keyfile::key_at;
use crate::place::Place;
use crate::source::SourceAt;
use crate::start;

/// A program (farfork) and its arguments, as a process that mounts a source at `place`.
pub fn mount_command(
    program: &Path,
    name: &str,
    place: &Place,
    node: &FarNode,
    idle_s: Option<u64>,
) -> Vec<OsString> {
    let FarNode { address, key, tls, .. } = node.clone();
    let source = SourceAt { address, key, tls };
    mount_command_of(program, name, place, Some(&source), node.deadline_ms, idle_s)
}

/// The same; without `source`, each image has a node of its own, which is named when the image is looked for.
pub fn mount_command_of(
    program: &Path,
    name: &str,
    place: &Place,
    source: Option<&SourceAt>,
    deadline_ms: u64,
    idle_s: Option<u64>,
) -> Vec<OsString> {
    let mut command: Vec<OsString> = vec![
        program.into(),
        "far".into(),
        name.into(),
        "--place".into(),
        place.directory().into(),
        "--deadline-ms".into(),
        deadline_ms.to_string().into(),
    ];
    if let Some(SourceAt { address, key, tls }) = source {
        command.extend(["--source".into(), address.into(), "--key".into(), key.into()]);
        if let Some(TlsFiles { cert, key, ca }) = tls {
            let files = [("--tls-cert", cert), ("--tls-key", key), ("--tls-ca", ca)];
            command.extend(files.into_iter().flat_map(|(name, path)| [name.into(), path.into()]));
        }
    }
    if let Some(idle_s) = idle_s {
        command.extend(["--idle-s".into(), idle_s.to_string().into()]);
    }
    command
}

/// The image `cid` of `node`, as a file of the file system of far images, which is mounted below the
/// directory `run` by `program` if it is not. A mount that knows the image needs no node for that.
///
/// # Errors
/// The key cannot be used; the file system cannot be mounted; the node cannot be reached, or has no such
/// image.
pub fn open_far_side(
    run: &Path,
    program: &Path,
    node: &FarNode,
    cid: Cid,
) -> Result<File, FarError> {
    key_at(&node.key)?;
    let place = Place::of(run, &node.address);
    let command = mount_command(program, "mount", &place, node, None);
    start::ensure_with(&place, &command, node.tls.as_ref())?;
    let path = place.images().join(cid.to_string());
    let failed = || FarError::io("open", &path);
    match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            start::find(&place, &cid.to_string(), false)?;
            let file = File::open(&path).map_err(failed())?;
            demand_mounted(file, &place, &path)
        }
        opened => demand_mounted(opened.map_err(failed())?, &place, &path),
    }
}

/// A file in the directory below the mount is not the other node's.
fn demand_mounted(file: File, place: &Place, path: &Path) -> Result<File, FarError> {
    let failed = || FarError::io("look at", path);
    let below = std::fs::metadata(place.pool()).map_err(failed())?;
    let is_mounted = file.metadata().map_err(failed())?.dev() != below.dev();
    let error = || std::io::Error::other("far memory is mounted in another mount namespace");
    if is_mounted { Ok(file) } else { Err(failed()(error())) }
}
