//! The pool's images, by name.
//!
//! A checkpoint is made by a process of its own: if code that stops and reads another process
//! crashes, the gateway must survive.

use std::io;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::format::Image;
use farfork_node::Removal;
use farfork_policy::Memory;
use farfork_pool::{ImageInfo, ImageState, Pool, PoolError};
use farfork_types::Cid;
use farfork_types::wire::AddressRange;
use serde::Deserialize;
use serde_json::Value;

use super::{Settings, blocking};
use crate::scheduler::nodes::{NodesError, PoolImage};

/// The images of a pool.
#[derive(Clone, Debug)]
pub struct Images {
    pool: Arc<Pool>,
    settings: Settings,
}

impl Images {
    /// The images of this pool.
    pub fn new(pool: Arc<Pool>, settings: Settings) -> Images {
        Images { pool, settings }
    }

    /// The pool.
    pub fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool)
    }

    /// The pool's use and size.
    pub fn room(&self) -> Memory {
        self.pool.info().map_or_else(
            |_| Memory::default(),
            |info| Memory {
                used_bytes: info.size_bytes.saturating_sub(info.free_bytes),
                budget_bytes: info.size_bytes,
            },
        )
    }

    /// The number of images.
    pub fn count(&self) -> u64 {
        let is_there = |image: &&ImageInfo| image.state == ImageState::Published;
        self.pool.info().map_or(0, |info| info.images.iter().filter(is_there).count() as u64)
    }

    async fn read_pool<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Pool) -> Result<T, String> + Send + 'static,
    ) -> Result<T, NodesError> {
        let pool = Arc::clone(&self.pool);
        let result = blocking(move || read(&pool)).await;
        let result = result.unwrap_or_else(|| Err("the platform is shutting down".to_owned()));
        result.map_err(|reason| NodesError::Images { reason })
    }

    /// The image of this name.
    pub async fn find(&self, name: &str) -> Result<Option<Cid>, NodesError> {
        let name = parsed(name)?;
        self.read_pool(move |pool| named(pool, &name)).await
    }

    /// The image of this name, if this farfork can read it.
    pub async fn usable(&self, name: &str) -> Result<Option<Cid>, NodesError> {
        let name = parsed(name)?;
        self.read_pool(move |pool| {
            Ok(named(pool, &name)?.filter(|cid| Image::read(pool, *cid).is_ok()))
        })
        .await
    }

    /// All images with names. An image with several names is listed under each.
    pub async fn list(&self) -> Result<Vec<PoolImage>, NodesError> {
        self.read_pool(|pool| listed(pool).map_err(|error| error.to_string())).await
    }

    /// Removes a name, and its image if that has no other name.
    pub async fn remove(&self, name: &str) -> Result<(), NodesError> {
        let name = parsed(name)?;
        self.read_pool(move |pool| remove(pool, &name)).await
    }

    /// Checkpoints a process, which goes on, or is killed with `kill`. Its clones are supplied with descriptor
    /// `supplied`. The image is verified on `node` first, so
    /// that no call pays for an image that no clone can start from.
    pub async fn checkpoint(
        &self,
        (pid, node): (i32, &str),
        name: &str,
        hot: Vec<AddressRange>,
        (kill, supplied): (bool, Option<u32>),
    ) -> Result<(), NodesError> {
        let mut command = Command::new(&self.settings.program);
        command.args(["checkpoint", "--json", "--pid", &pid.to_string(), "--name", name]);
        command.arg("--pool").arg(&self.settings.pool);
        command.args(["--verify", "--node", node]);
        if kill {
            command.arg("--kill");
        }
        if let Some(fd) = supplied {
            command.args(["--external-fd", &fd.to_string()]);
        }
        // Option and value in one argument, so that a range is never taken for an option.
        command.args(hot.iter().map(|range| format!("--hot={range}")));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = blocking(move || command.output()).await;
        match ended {
            Some(Ok(output)) if output.status.success() => {
                match foreign(&output.stdout, supplied) {
                    None => Ok(()),
                    Some(reason) => {
                        self.remove(name).await?;
                        Err(NodesError::Checkpoint { reason })
                    }
                }
            }
            Some(ended) => Err(checkpoint_error(ended)),
            None => {
                Err(NodesError::Checkpoint { reason: "the platform is shutting down".to_owned() })
            }
        }
    }
}

fn parsed(name: &str) -> Result<ImageName, NodesError> {
    let wrong = |reason: String| NodesError::Images { reason };
    name.parse().map_err(|error: farfork_image::catalog::ParseNameError| wrong(error.to_string()))
}

fn named(pool: &Pool, name: &ImageName) -> Result<Option<Cid>, String> {
    let found = Catalog::of(pool).get(name);
    found.map_err(|error| error.to_string())
}

fn listed(pool: &Pool) -> Result<Vec<PoolImage>, PoolError> {
    let named = Catalog::of(pool).list()?;
    let images = pool.info()?.images;
    let find = |cid: Cid| images.iter().find(|image| image.cid == cid.to_string());
    let listed = named.into_iter().filter_map(|(name, cid, _)| {
        let image = find(cid)?;
        let (bytes, nodes) = (image.bytes + image.table_bytes, image.pinned_by.len() as u64);
        Some(PoolImage { name: name.to_string(), bytes, nodes })
    });
    Ok(listed.collect())
}

fn remove(pool: &Pool, name: &ImageName) -> Result<(), String> {
    let failed = |error: PoolError| error.to_string();
    let Some(cid) = Catalog::of(pool).remove(name).map_err(failed)? else { return Ok(()) };
    if let Removal::KeptAt(node, why) = farfork_node::remove_unnamed(pool, cid).map_err(failed)? {
        let address = node.address;
        tracing::warn!(%cid, node = address, why, "a far node keeps an image that was removed here");
    }
    Ok(())
}

/// What the program reports about an image.
#[derive(Deserialize)]
struct Checkpointed {
    external: Vec<External>,
}

/// A descriptor that clones of the image have to get from elsewhere.
#[derive(Deserialize)]
struct External {
    fd: u32,
    what: String,
}

/// Why no clone of an image can be started here: it has open what the node would have to supply. Clones get
/// standard streams from the platform, and descriptor `supplied`.
fn foreign(report: &[u8], supplied: Option<u32>) -> Option<String> {
    let report: Checkpointed = match serde_json::from_slice(report) {
        Ok(report) => report,
        Err(why) => return Some(format!("its report cannot be read: {why}")),
    };
    let External { fd, what } = {
        let is_foreign = |own: &External| own.fd > 2 && Some(own.fd) != supplied;
        report.external.into_iter().find(is_foreign)?
    };
    Some(format!(
        "descriptor {fd} is {what}, which a clone cannot get; close it before the function is checkpointed"
    ))
}

/// The program's document about a pool without room.
#[derive(Deserialize)]
struct NoRoom {
    asked_bytes: u64,
    free_bytes: u64,
}

/// Why a checkpoint failed: its refusals, or its error message.
fn checkpoint_error(ended: io::Result<Output>) -> NodesError {
    let output = match ended {
        Ok(output) => output,
        Err(error) => return NodesError::Checkpoint { reason: farfork_sys::words::of(&error) },
    };
    if let Ok(NoRoom { asked_bytes, free_bytes }) = serde_json::from_slice(&output.stdout) {
        return NodesError::NoRoom { asked_bytes, free_bytes };
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.trim().trim_start_matches("farfork: ");
    let reason = match serde_json::from_slice::<Value>(&output.stdout) {
        Ok(document) if message.is_empty() => document.to_string(),
        _ => message.to_owned(),
    };
    NodesError::Checkpoint { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_with_foreign_descriptors_is_of_no_use() {
        let report = |fd: u32| {
            let external = format!(r#"{{"fd":{fd},"what":"the pipe /opt/p"}}"#);
            foreign(format!(r#"{{"cid":"1","external":[{external}]}}"#).as_bytes(), Some(4))
        };
        assert_eq!((report(2), report(4)), (None, None));
        let why = report(3).unwrap();
        assert!(
            why.starts_with("descriptor 3 is the pipe /opt/p, which a clone cannot get"),
            "{why}"
        );
        assert!(foreign(b"{}", None).is_some() && foreign(b"", None).is_some());
    }
}
