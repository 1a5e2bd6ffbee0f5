//! Structures that another process receives and walks, against the same in memory of its own (the paper, figure 10 (b)).
#![allow(unsafe_code)] // reason: forks, and reads objects

use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use farfork::{Client, Mailbox, ObjectsError, Region, Timeout};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

const PATIENCE: Timeout = Timeout::After(Duration::from_secs(60));
/// Words of a node: two references, and a number.
const WORDS: usize = 3;

/// What is built.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    /// A binary tree of this height.
    Tree(u32),
    /// A list of so many nodes.
    List(usize),
}

impl Shape {
    fn nodes(self) -> usize {
        match self {
            Shape::Tree(height) => (1 << height) - 1,
            Shape::List(nodes) => nodes,
        }
    }

    /// The node before this one, and which of its references means it.
    fn parent(self, node: usize) -> (usize, u16) {
        match self {
            Shape::Tree(_) => ((node - 1) / 2, ((node - 1) % 2) as u16),
            Shape::List(_) => (node - 1, 0),
        }
    }
}

/// Nanoseconds for a node of a structure that a process receives, walks and lets go.
pub(super) fn received_ns(directory: &Path, shape: Shape) -> Result<f64, ObjectsError> {
    let path = directory.join("structure");
    let bytes = (shape.nodes() as u64 * 64 + (16 << 20)).next_multiple_of(4096);
    Region::create(&path, bytes)?;
    let measured = in_region(&path, shape);
    let failed = |source| ObjectsError::Io { doing: "remove", path: path.clone(), source };
    std::fs::remove_file(&path).map_err(failed)?;
    measured
}

fn in_region(path: &Path, shape: Shape) -> Result<f64, ObjectsError> {
    let mut client = Client::open(path)?;
    let (there, back) = (client.mailbox("there", 4)?, client.mailbox("back", 4)?);
    let nodes = (0..shape.nodes())
        .map(|number| {
            let node = client.allocate_linkable(8 * WORDS, 2)?;
            super::touch_word(node, 2, number as u64);
            Ok(node)
        })
        .collect::<Result<Vec<_>, ObjectsError>>()?;
    for number in 1..nodes.len() {
        let (parent, field) = shape.parent(number);
        client.link(nodes[0], nodes[parent], field, nodes[number])?;
    }
    client.send_root(there, nodes[0], PATIENCE)?;
    let failed = |source: nix::errno::Errno| ObjectsError::Io {
        doing: "start a process that uses",
        path: path.to_owned(),
        source: source.into(),
    };
    // SAFETY: the other threads of this program have ended, and the child never returns.
    let child = match unsafe { fork() }.map_err(failed)? {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let _ = receive(path, shape);
            // SAFETY: ends the process at once.
            unsafe { nix::libc::_exit(0) }
        }
    };
    let answer = client.receive(back, Timeout::After(Duration::from_secs(20)));
    let _ = waitpid(child, None);
    let ns = answer?.map(|answer| f64::from_bits(super::word_of(answer, 0)));
    ns.ok_or(ObjectsError::Full)
}

/// In another process. Sends back what it has measured.
fn receive(path: &Path, shape: Shape) -> Result<(), ObjectsError> {
    let mut client = Client::open(path)?;
    let (there, back): (Mailbox, Mailbox) =
        (client.mailbox("there", 4)?, client.mailbox("back", 4)?);
    let mut stack = Vec::with_capacity(64);
    let begun = Instant::now();
    let root = client.receive(there, PATIENCE)?.ok_or(ObjectsError::Full)?;
    let sum = walk(&mut stack, root, |reference| client.object(reference).ok());
    client.release(root)?;
    let ns = begun.elapsed().as_nanos() as f64 / shape.nodes() as f64;
    if sum != expected(shape) {
        return Err(ObjectsError::Full);
    }
    let answer = client.allocate(64)?;
    super::touch(answer, ns.to_bits());
    client.send(back, answer, PATIENCE).map(drop)
}

/// The same walk over nodes of this process.
pub(super) fn plain_ns(shape: Shape) -> f64 {
    let mut nodes: Vec<Box<[u64; WORDS]>> =
        (0..shape.nodes()).map(|number| Box::new([0, 0, number as u64])).collect();
    for number in 1..nodes.len() {
        let (parent, field) = shape.parent(number);
        let address = nodes[number].as_ptr().expose_provenance() as u64;
        nodes[parent][usize::from(field)] = address;
    }
    let root = NonNull::from(&*nodes[0]).cast();
    let mut stack = Vec::with_capacity(64);
    let begun = Instant::now();
    let sum = walk(&mut stack, root, |address| {
        NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize))
    });
    let ns = begun.elapsed().as_nanos() as f64 / shape.nodes() as f64;
    assert_eq!(sum, expected(shape), "each node is met once");
    ns
}

fn expected(shape: Shape) -> u64 {
    let last = shape.nodes() as u64 - 1;
    last * (last + 1) / 2
}

/// Adds the numbers of all nodes.
fn walk(
    stack: &mut Vec<NonNull<u8>>,
    root: NonNull<u8>,
    follow: impl Fn(u64) -> Option<NonNull<u8>>,
) -> u64 {
    let mut sum = 0;
    stack.push(root);
    while let Some(node) = stack.pop() {
        sum += super::word_of(node, 2);
        for reference in [super::word_of(node, 1), super::word_of(node, 0)] {
            if reference != 0 {
                stack.extend(follow(reference));
            }
        }
    }
    sum
}
