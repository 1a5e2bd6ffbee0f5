//! Descriptors of real processes: what is captured, what is refused, and whether a clone that is
//! made from it has the same.

mod carried;
mod clone;
mod refused;
mod subject;

use farfork_checkpoint::descriptors::{Collected, Connections, collect};
use farfork_checkpoint::refuse::{Refusal, Refusals};
use farfork_checkpoint::shared::Objects;
use farfork_image::model::OpenFile;

/// What `pid` has, and what of it is refused.
fn look(pid: i32) -> (Collected, Vec<Refusal>) {
    let mut refusals = Refusals::of(format!("process {pid}"));
    let objects = Objects::find(pid, &[], &mut refusals).expect("its memfds can be opened");
    let collected = collect(pid, &objects, Connections::End, &mut refusals)
        .expect("a stopped child can be looked at");
    (collected, refusals.into_list())
}

/// What `pid` has, all of which can be carried.
fn carried(pid: i32) -> Collected {
    let (collected, refusals) = look(pid);
    assert_eq!(refusals, []);
    collected
}

/// The file behind number `fd`.
fn file(collected: &Collected, fd: u32) -> &OpenFile {
    let found = collected.descriptors.iter().find(|descriptor| descriptor.fd == fd);
    &collected.files[found.expect("the number is open").file as usize]
}
