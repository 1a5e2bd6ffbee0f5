//! `farfork images export` and `import`.

use farfork_sys::words;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal};
use std::path::Path;

use farfork_image::archive;
use farfork_image::catalog::ImageName;
use farfork_image::format::Image;
use farfork_node::with_far_side;
use farfork_pool::{ImageFile, Pool};

use crate::progress::Progress;
use crate::unfinished::UnfinishedFile;
use crate::{checkpoint, named};

/// The file name that means stdin or stdout.
const STANDARD: &str = "-";

/// Writes an image to a file. After a failure there is no partial file.
pub(crate) fn export(pool: &Pool, image: &str, file: &Path) -> Result<(), Box<dyn Error>> {
    let source = pool.find(named::resolve(pool, image)?)?;
    let source = with_far_side(&source)?.unwrap_or(source);
    let image = Image::read_from(&source)?;
    let failed = |reason: String| format!("cannot export to {}: {reason}", file.display());
    let refused = |error: io::Error| failed(words::of(&error));
    if file == Path::new(STANDARD) {
        if io::stdout().is_terminal() {
            return Err("cannot export to a terminal: redirect stdout, or name a file".into());
        }
        return write(pool, &source, &image, io::stdout().lock())
            .map_err(|error| failed(error.to_string()).into());
    }
    let (unfinished, archive) = UnfinishedFile::beside(file).map_err(refused)?;
    write(pool, &source, &image, &archive).map_err(|error| failed(error.to_string()))?;
    unfinished.finish(&archive).map_err(|error| refused(error).into())
}

fn write(
    pool: &Pool,
    source: &ImageFile,
    image: &Image,
    out: impl io::Write,
) -> Result<(), archive::ArchiveError> {
    let mut progress = Progress::new("exporting");
    let out = BufWriter::new(out);
    archive::write(pool, source, image, out, &mut |done, all| progress.windows(done, all))
}

/// Imports an image from a file and names it.
pub(crate) fn import(
    pool: &Pool,
    file: &Path,
    name: Option<&ImageName>,
) -> Result<(), Box<dyn Error>> {
    let name = name.map_or_else(|| name_of(file), |name| Ok(name.clone()))?;
    let failed = |reason: String| format!("cannot import {}: {reason}", file.display());
    let input: Box<dyn io::Read> = if file == Path::new(STANDARD) {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(file).map_err(|error| failed(words::of(&error)))?)
    };
    let mut progress = Progress::new("importing");
    let input = BufReader::with_capacity(1 << 20, input);
    let shown = &mut |done, all| progress.windows(done, all);
    let (cid, _held) = archive::read(pool, Some(name.user()), input, shown)
        .map_err(|error| failed(error.to_string()))?;
    drop(progress);
    checkpoint::publish(pool, &name, cid)?;
    println!("{cid}");
    eprintln!("{name}");
    Ok(())
}

/// `import/FILE` without its extension.
fn name_of(file: &Path) -> Result<ImageName, Box<dyn Error>> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    format!("import/{stem}").parse().map_err(|_| {
        format!("cannot derive a name from {}: use --name USER/FUNCTION", file.display()).into()
    })
}
