//! Asking a serving node to keep an image of which another pool has not all bytes.

use std::time::{Duration, Instant};

use farfork_fabric::Fabric;
use farfork_fabric::tcp::{ClientSettings, Connection};
use farfork_image::tier::FarNode;
use farfork_types::Cid;

use crate::certificates::certificates_at;
use crate::error::FarError;
use crate::keyfile::key_at;
use crate::protocol::{Question, encode};

/// Has `node` keep its image `cid` for the pool `holder`, whatever is removed there, until it is released.
///
/// # Errors
/// The node cannot be reached, has no such image or not all of it, or refuses.
pub fn hold(node: &FarNode, cid: Cid, holder: &str) -> Result<(), FarError> {
    ask(node, &Question::Hold { cid: cid.to_bytes(), holder: holder.to_owned() })
}

/// The opposite. The image goes if no other name there means it.
///
/// # Errors
/// The node cannot be reached, or refuses.
pub fn release(node: &FarNode, cid: Cid, holder: &str) -> Result<(), FarError> {
    ask(node, &Question::Release { cid: cid.to_bytes(), holder: holder.to_owned() })
}

fn ask(node: &FarNode, question: &Question) -> Result<(), FarError> {
    let timeout = Duration::from_millis(node.deadline_ms);
    let deadline = Instant::now() + timeout;
    let certificates = node.tls.as_ref().map(certificates_at).transpose()?;
    let settings = ClientSettings { timeout, certificates, ..ClientSettings::default() };
    let connection = Connection::connect(&node.address, &key_at(&node.key)?, settings)?;
    connection.call(&encode(question), deadline)?;
    Ok(())
}
