//! What a monitor hands over to a page server, in whatever parts it comes, and what the regions mean. A region that is
//! accepted lies in the snapshot, every address in it leads to the page that it belongs to, and no two overlap. Regions that
//! are whole have each page of the snapshot.

use std::io::Write;
use std::os::unix::net::UnixStream;

use farfork_pageserver::{HandOver, Regions};

const MEMORY_BYTES: u64 = 64 << 20;
/// Bytes that one message has before the other end has to read: less than a socket takes.
const MOST_BYTES: usize = 32 << 10;

/// One run. The first byte says where the text is cut.
pub fn run(bytes: &[u8]) {
    let Some((cut, text)) = bytes.split_first() else { return };
    let text = &text[..text.len().min(MOST_BYTES)];
    let parts = text.split_at(usize::from(*cut).min(text.len()));
    let Some(whole) = read(&[text]) else { return };
    // However it was cut, it means the same.
    assert_eq!(read(&[parts.0, parts.1]).as_ref(), Some(&whole));
    for region in whole.all() {
        let (base, size) = (region.base_host_virt_addr, region.size);
        assert!(region.offset + size <= MEMORY_BYTES && base.checked_add(size).is_some());
        for into in [0, size / 2, size - 1] {
            let found = whole.find(base + into).expect("an address of a region");
            let begin = into - into % found.page_bytes;
            assert_eq!((found.address, found.offset), (base + begin, region.offset + begin));
            assert_eq!(found.rest, size - begin);
        }
        assert!(whole.offsets(base, base + size).count() == 1);
    }
    let is_whole = whole.demand_whole(MEMORY_BYTES).is_ok();
    let has_all = (0..MEMORY_BYTES).step_by(4096).all(|at| whole.at_offset(at).is_some());
    assert_eq!(is_whole, has_all);
}

/// The regions of a message that comes in these parts, if they are accepted.
fn read(parts: &[&[u8]]) -> Option<Regions> {
    let (mut monitor, server) = UnixStream::pair().ok()?;
    let mut hand_over = HandOver::default();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        monitor.write_all(part).ok()?;
        let is_complete = hand_over.receive(&server).ok()?;
        assert!(!is_complete, "there is no userfaultfd");
    }
    Regions::checked(hand_over.regions(), MEMORY_BYTES).ok()
}
