//! Where things go that do not last.

use super::*;
use crate::model::RegionTraits;

fn object() -> SharedObject {
    let kind = ObjectKind::Memfd(b"m".to_vec());
    SharedObject { kind, size: 1, mode: 0o777, owner: (0, 0), seals: 0, extents: Vec::new() }
}

fn empty() -> Model {
    Model { members: vec![Member::default()], ..Model::default() }
}

#[test]
fn a_hole_touches_nothing() {
    let region = |start: u64, end: u64| Region {
        start,
        end,
        prot: 3,
        backing: Backing::Anonymous,
        traits: RegionTraits::default(),
    };
    let mut memory = Memory::default();
    assert_eq!(hole(&memory, 1 << 40), LOWEST);
    memory.regions = vec![
        region(4096, 8192),
        region(LOWEST - 4096, LOWEST + 4096),
        region(LOWEST + (1 << 30), LOWEST + (2 << 30)),
    ];
    memory.vdso = (LOWEST + (2 << 30) + 4096, 8192);
    assert_eq!(hole(&memory, 4096), LOWEST + 4096);
    assert_eq!(hole(&memory, (1 << 30) - 4096), LOWEST + 4096);
    assert_eq!(hole(&memory, 1 << 30), LOWEST + (2 << 30) + 4096 + 8192);
    memory.regions.push(region(30 << 40, (30 << 40) + 4096));
    memory.regions.push(region(60 << 40, (60 << 40) + 4096));
    assert_eq!(hole(&memory, 1 << 45), window::END);
}

#[test]
fn content_is_mapped_as_a_whole() {
    let extent = |offset, bytes, stored| ObjectExtent { offset, bytes, stored };
    let area = SharedObject::AREA;
    let first = SharedObject {
        size: 3 * CHUNK_BYTES - 100,
        extents: vec![extent(0, 3 * CHUNK_BYTES, area)],
        ..object()
    };
    let second = SharedObject {
        size: 1 << 40,
        extents: vec![extent(1 << 30, 8192, area + 3 * CHUNK_BYTES)],
        ..object()
    };
    let mut model = Model { objects: vec![first, second], ..empty() };
    let window = |index| crate::model::StoredWindow {
        address: area + index * CHUNK_BYTES,
        pages: [u64::MAX; 8],
    };
    model.content.windows = (0..4).map(window).collect();
    model.content.segments = crate::layout::content(&model.content.windows, 0);
    let c = CHUNK_BYTES;
    let fds = FdLayout::compute(&model);
    let ops = compile(Subject::root(&model, &fds), &mut Arena::new());
    let calls = |number: u32, args: &[usize]| -> Vec<Vec<u64>> {
        let own = ops.iter().filter(|op| op.nr == number);
        own.map(|op| args.iter().map(|index| op.args[*index]).collect()).collect()
    };
    let maps = calls(libc::SYS_mmap as u32, &[1, 5]);
    assert_eq!(maps, [vec![4 * c, DATA_AT]]);
    let scratch = window::SCRATCH;
    assert_eq!(
        calls(nr::WRITE_ALL, &[1, 2, 3]),
        [vec![scratch, 3 * c - 100, 0], vec![scratch + 3 * c, 8192, 1 << 30]]
    );
}
