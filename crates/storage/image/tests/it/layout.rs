//! What a clone would see of an image: the plan's own calls, made on a model of an address space.

use std::collections::HashMap;

use farfork_image::compile::compile;
use farfork_image::layout;
use farfork_image::model::*;
use farfork_plan::protocol::SLOT_IMAGE;
use farfork_plan::{MemberPlan, Op, PlanHeader, Table, Window, nr, window};
use farfork_types::{CHUNK_BYTES, PAGE_BYTES, align_down};
use proptest::prelude::*;
use zerocopy::FromBytes;

const PAGES: u64 = CHUNK_BYTES / PAGE_BYTES;
const BASE: u64 = 0x5555_0000_0000;

/// What a page of an address space shows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shows {
    Pool(u64),
    Zeros,
    /// The page of its file that lies there by rights, or another.
    File(u64),
}

#[derive(Clone, Debug)]
struct Stretch {
    gap: u64,
    pages: u64,
    kind: u8,
    /// Runs of touched pages: pages left out, pages touched.
    touched: Vec<(u64, u64)>,
}

fn stretch() -> impl Strategy<Value = Stretch> {
    let pages = prop_oneof![1..8u64, 1..200u64, 1..1600u64];
    let run = (prop_oneof![1..4u64, 1..100u64, 1..900u64], prop_oneof![1..4u64, 1..300u64]);
    let gap = prop_oneof![Just(0), 1..9u64, 1..2000u64];
    (gap, pages, 0..6u8, prop::collection::vec(run, 0..6))
        .prop_map(|(gap, pages, kind, touched)| Stretch { gap, pages, kind, touched })
}

fn region(start: u64, stretch: &Stretch) -> Region {
    let file =
        FileStamp { path: "/lib".into(), size: 1 << 40, mtime_ns: 0, ..FileStamp::default() };
    let backing = match stretch.kind {
        3 | 4 => Backing::PrivateFile(file, start - BASE),
        5 => Backing::SharedFile { file, offset: start - BASE, is_writable: false },
        _ => Backing::Anonymous,
    };
    let traits = RegionTraits { wipe_on_fork: stretch.kind == 2, ..RegionTraits::default() };
    Region { start, end: start + stretch.pages * PAGE_BYTES, prot: 3, backing, traits }
}

/// The pages of a region that a checkpoint would store.
fn stored(region: &Region, stretch: &Stretch) -> Vec<u64> {
    let all = (region.start..region.end).step_by(PAGE_BYTES as usize);
    match stretch.kind {
        3 => all.collect(),
        5 => Vec::new(),
        _ => {
            let mut pages = Vec::new();
            let mut at = region.start;
            for (left_out, touched) in &stretch.touched {
                at += left_out * PAGE_BYTES;
                let end = (at + touched * PAGE_BYTES).min(region.end);
                pages.extend((at..end).step_by(PAGE_BYTES as usize));
                at = end.max(at);
            }
            pages
        }
    }
}

fn model(stretches: &[Stretch]) -> Model {
    let mut memory = Memory::default();
    let mut at = BASE;
    for stretch in stretches {
        let region = region(at + stretch.gap * PAGE_BYTES, stretch);
        at = region.end;
        for page in stored(&region, stretch) {
            let address = align_down(page, CHUNK_BYTES);
            if memory.stored.windows.last().is_none_or(|last| last.address != address) {
                memory.stored.windows.push(StoredWindow { address, pages: [0; WINDOW_WORDS] });
            }
            let index = ((page - address) / PAGE_BYTES) as usize;
            memory.stored.windows.last_mut().unwrap().pages[index / 64] |= 1 << (index % 64);
        }
        memory.regions.push(region);
    }
    memory.stored.segments = layout::segments(&memory.regions, &memory.stored.windows, 0);
    let thread = Thread { registers: vec![0; 27], xstate: vec![0; 2696], ..Thread::default() };
    let mut member = Member { memory, threads: vec![thread], ..Member::default() };
    member.process.exe = "/bin/true".into();
    member.process.cwd = "/".into();
    Model { members: vec![member], ..Model::default() }
}

/// As the stacks of threads: large regions of which little is used.
#[test]
fn what_is_cut_off_at_a_window_in_any_case_is_cut_off_closely() {
    let stack = Stretch { gap: 512, pages: 2048, kind: 0, touched: vec![(2040, 3)] };
    let model = model(&vec![stack; 9]);
    let segments = &model.root().memory.stored.segments;
    let kept: Vec<u64> = segments.iter().map(|segment| segment.bytes / PAGE_BYTES).collect();
    assert_eq!((kept, model.chunks()), (vec![8; 9], 1));
}

fn elements<T: FromBytes>(plan: &[u8], table: Table) -> Vec<T> {
    let start = (table.address - window::PLAN) as usize;
    let bytes = &plan[start..start + table.count as usize * size_of::<T>()];
    bytes.chunks_exact(size_of::<T>()).map(|one| T::read_from_bytes(one).unwrap()).collect()
}

fn pages(start: u64, bytes: u64) -> impl Iterator<Item = u64> {
    (0..bytes).step_by(PAGE_BYTES as usize).map(move |at| start + at)
}

/// Runs the calls that map and fill memory.
fn run(ops: &[Op]) -> HashMap<u64, Shows> {
    let mut space = HashMap::new();
    for op in ops {
        let [a, b, _, d, e, f] = op.args;
        match i64::from(op.nr) {
            libc::SYS_mmap => {
                for page in pages(a, b) {
                    let shows = match e {
                        _ if d & libc::MAP_ANONYMOUS as u64 != 0 => Shows::Zeros,
                        slot if slot == u64::from(SLOT_IMAGE) => Shows::Pool(f + (page - a)),
                        _ => Shows::File(f + (page - a)),
                    };
                    space.insert(page, shows);
                }
            }
            // to memory that is there
            number if number == i64::from(nr::READ_ALL) => {
                for page in pages(b, op.args[2]) {
                    assert_eq!(space.insert(page, Shows::Pool(d + (page - b))), Some(Shows::Zeros));
                }
            }
            _ => {}
        }
    }
    space
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if std::env::var_os("FARFORK_TEST_LONG").is_some() { 20_000 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A clone sees at each address what its parent had there, and nothing of what its parent had
    /// elsewhere.
    #[test]
    fn a_clone_sees_its_parents_bytes_and_no_others(
        stretches in prop::collection::vec(stretch(), 1..14),
    ) {
        let model = model(&stretches);
        prop_assert_eq!(model.validate(), Ok(()));
        let stored = |page: u64| {
            let window = model.root().memory.stored.window_of(page);
            window.is_some_and(|w| w.holds(((page - w.address) / PAGE_BYTES) as usize))
        };
        // The image, as a checkpoint fills it: whose page lies where.
        let mut pool = HashMap::new();
        for segment in &model.root().memory.stored.segments {
            for page in pages(segment.address, segment.bytes) {
                let owner = (page, stored(page));
                let before = pool.insert(segment.offset(page), owner);
                prop_assert!(before.is_none(), "{page:x} lies on {before:x?}");
            }
        }
        let plan = compile(&model);
        let (header, _) = PlanHeader::read_from_prefix(&plan).unwrap();
        let mut space = run(&elements::<Op>(&plan, elements::<MemberPlan>(&plan, header.members)[0].memory_ops));
        for region in &model.root().memory.regions {
            for page in pages(region.start, region.end - region.start) {
                let shows = space.remove(&page);
                let own_file = Some(Shows::File(page - BASE));
                match (&region.backing, shows) {
                    (Backing::SharedFile { .. }, shows) => prop_assert_eq!(shows, own_file),
                    (backing, Some(Shows::Pool(offset))) => {
                        prop_assert_eq!(pool.get(&offset).map(|owner| owner.0), Some(page));
                        prop_assert!(stored(page) || *backing == Backing::Anonymous, "{page:x}");
                    }
                    (Backing::PrivateFile(..), shows) => {
                        prop_assert!(!stored(page) && shows == own_file, "{page:x}: {shows:?}");
                    }
                    (Backing::Object { .. }, _) => prop_assert!(false, "none was made"),
                    (Backing::Anonymous, shows) => {
                        prop_assert!(!stored(page) && shows == Some(Shows::Zeros), "{page:x}");
                    }
                }
            }
        }
        prop_assert!(space.is_empty(), "mapped where the parent had nothing");
        let windows = elements::<Window>(&plan, header.windows);
        prop_assert!(windows.is_sorted_by_key(|window| window.place));
        let mapped: u64 = windows.iter().map(|window| window.bytes).sum();
        prop_assert_eq!(mapped, pool.len() as u64 * PAGE_BYTES);
        for window in windows {
            for at in (0..window.bytes).step_by(PAGE_BYTES as usize) {
                let owner = pool.get(&(window.place + at)).map(|owner| owner.0);
                prop_assert_eq!(owner, Some(window.address + at), "what the supervisor gets");
            }
        }
    }

    /// The image takes at most about twice what is kept, and the windows that mappings lead
    /// through.
    #[test]
    fn full_windows_lie_congruent_and_sparse_ones_together(
        stretches in prop::collection::vec(stretch(), 1..14),
    ) {
        let model = model(&stretches);
        let memory = &model.root().memory;
        let stored = &memory.stored;
        let kept: u64 = stored.segments.iter().map(|segment| segment.bytes).sum();
        let chunks = model.chunks() as u64 * CHUNK_BYTES;
        prop_assert!(chunks >= kept && model.chunks() <= stored.windows.len());
        let window_of = |address: u64| address / CHUNK_BYTES;
        let spanned = |r: &Region| window_of(r.end - 1) - window_of(r.start);
        let led: u64 =
            memory.regions.iter().map(spanned).filter(|edges| *edges > 0).map(|n| n + 1).sum();
        let most = 2 * kept + CHUNK_BYTES * (led + 1);
        prop_assert!(chunks <= most, "{chunks} bytes for {kept}");
        for window in stored.windows.iter().filter(|w| w.pages.iter().all(|word| *word == !0)) {
            let mut own = stored.segments_in(window.address, window.address + PAGES * PAGE_BYTES);
            prop_assert!(own.all(|s| (s.place ^ s.address).is_multiple_of(CHUNK_BYTES)));
        }
    }

    /// What was one mapping is cut only at windows of which nothing is stored.
    #[test]
    fn a_mapping_stays_one_where_all_its_windows_are_stored(
        stretches in prop::collection::vec(stretch(), 1..14),
    ) {
        let model = model(&stretches);
        let plan = compile(&model);
        let (header, _) = PlanHeader::read_from_prefix(&plan).unwrap();
        let ops = elements::<Op>(&plan, elements::<MemberPlan>(&plan, header.members)[0].memory_ops);
        let maps: Vec<_> = ops.iter().filter(|op| i64::from(op.nr) == libc::SYS_mmap).collect();
        let anonymous = |region: &&Region| {
            region.backing == Backing::Anonymous && !region.traits.wipe_on_fork
        };
        for region in model.root().memory.regions.iter().filter(anonymous) {
            let (start, end) = (region.start, region.end);
            let windows = (align_down(start, CHUNK_BYTES)..end).step_by(CHUNK_BYTES as usize);
            let mut stored: Vec<bool> = windows
                .map(|at| {
                    let window = model.root().memory.stored.window_of(at);
                    window.is_some_and(|window| !window.runs(start, end).is_empty())
                })
                .collect();
            stored.dedup();
            let overlaps = |op: &&&Op| op.args[0] < end && op.args[0] + op.args[1] > start;
            let cuts = maps.iter().filter(overlaps).count();
            prop_assert!(cuts <= stored.len(), "{start:x}-{end:x}: {cuts} mappings");
        }
    }
}

#[test]
fn the_same_model_gives_the_same_plan() {
    let model = crate::common::model();
    assert_eq!(compile(&model), compile(&model));
}
