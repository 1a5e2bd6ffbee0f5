//! A small model with something of everything.

use std::sync::OnceLock;

use farfork_image::archive;
use farfork_image::format::{self, Image};
use farfork_image::layout;
use farfork_image::model::*;
use farfork_image::store::{Draft, Published};
use farfork_pool::Pool;
use farfork_types::{CHUNK_BYTES, Cid};

const AT: u64 = 0x5555_5540_0000;

/// A window with a page, and one that is nearly full: in chunks of their own.
pub fn model() -> Model {
    let file =
        FileStamp { path: "/bin/true".into(), size: 9000, mtime_ns: 1, ..FileStamp::default() };
    let region = |start: u64, pages: u64, backing| Region {
        start,
        end: start + pages * 4096,
        prot: 3,
        backing,
        traits: RegionTraits::default(),
    };
    let mut member = Member::default();
    member.process.exe = "/bin/true".into();
    member.process.cwd = "/".into();
    member.process.pid = 42;
    member.memory.regions = vec![
        region(AT, 4, Backing::Anonymous),
        region(AT + CHUNK_BYTES, 8, Backing::PrivateFile(file, 4096)),
        region(AT + 3 * CHUNK_BYTES, 512, Backing::Anonymous),
        region(
            AT + 4 * CHUNK_BYTES,
            2,
            Backing::Object { object: 0, offset: 4096, is_shared: true, is_writable: false },
        ),
    ];
    member.memory.regions[2].traits.wipe_on_fork = true;
    let [mut one, mut many] = [[0; WINDOW_WORDS], [!0; WINDOW_WORDS]];
    (one[0], many[7]) = (2, !0 >> 2);
    member.memory.stored.windows = vec![
        StoredWindow { address: AT, pages: one },
        StoredWindow { address: AT + 3 * CHUNK_BYTES, pages: many },
    ];
    let memory = &mut member.memory;
    memory.stored.segments = layout::segments(&memory.regions, &memory.stored.windows, 0);
    member.memory.vdso = (0x7fff_0000_0000, 0x4000);
    member.threads = vec![Thread {
        tid: 42,
        comm: b"true".to_vec(),
        registers: vec![1; 27],
        xstate: vec![0; 2696],
        pending: vec![vec![10; 128]],
        ..Thread::default()
    }];
    member.signals.actions = vec![(10, [1, 2, 3, 4])];
    member.descriptors = (0..5).map(|fd| Descriptor { fd, file: fd, cloexec: false }).collect();
    let mut model = Model { members: vec![member], ..Model::default() };
    model.content.windows = vec![StoredWindow { address: SharedObject::AREA, pages: one }];
    model.content.segments = layout::content(&model.content.windows, 2);
    model.objects = vec![SharedObject {
        kind: ObjectKind::Memfd(b"shared".to_vec()),
        size: 8190,
        mode: 0o777,
        owner: (0, 0),
        seals: 1,
        extents: vec![ObjectExtent { offset: 4096, bytes: 4096, stored: SharedObject::AREA }],
    }];
    let external = || OpenFile::External { description: "a terminal".into() };
    let watches = vec![EpollWatch { member: 0, fd: 1, events: 1, data: 2 }];
    let epoll = OpenFile::Epoll { flags: 2, watches };
    let object = OpenFile::Object { object: 0, flags: 2, offset: 7 };
    model.files = vec![external(), external(), external(), epoll, object];
    model
}

/// A model of one window with a page: an image with little in it.
pub fn small_model() -> Model {
    let mut model = model();
    (model.objects, model.content) = Default::default();
    model.files.truncate(4);
    let member = &mut model.members[0];
    member.descriptors.truncate(4);
    let memory = &mut member.memory;
    memory.regions.truncate(1);
    memory.stored.windows.truncate(1);
    memory.stored.segments = layout::segments(&memory.regions, &memory.stored.windows, 0);
    model
}

/// Publishes a model whose stored pages have content.
pub fn publish(pool: &Pool, model: &Model) -> Cid {
    let mut draft = Draft::begin(pool, None).unwrap();
    draft.fit(model).unwrap();
    fill_and_publish(draft, model).cid
}

/// Publishes a draft whose stored pages get content.
pub fn fill_and_publish(mut draft: Draft<'_>, model: &Model) -> Published {
    let stored = model.chunk_pages();
    for (chunk, pages) in draft.data().chunks_mut(CHUNK_BYTES as usize).zip(&stored) {
        for page in (0..512).filter(|page| pages[page / 64] >> (page % 64) & 1 != 0) {
            chunk[page * 4096..][..4096].fill(page as u8 | 1);
        }
    }
    draft.publish(model).unwrap()
}

/// Bytes of the address space that a model stores.
pub fn stored_bytes(model: &Model) -> u64 {
    model.stored().flat_map(|stored| &stored.segments).map(|segment| segment.bytes).sum()
}

/// The model as an archive.
pub fn archive() -> &'static Vec<u8> {
    static ARCHIVE: OnceLock<Vec<u8>> = OnceLock::new();
    ARCHIVE.get_or_init(|| archive_of(&model()))
}

/// A model as an archive.
pub fn archive_of(model: &Model) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(&directory.path().join("pool"), 12 * CHUNK_BYTES).unwrap();
    let file = pool.find(publish(&pool, model)).unwrap();
    let image = Image::read_from(&file).unwrap();
    let mut bytes = Vec::new();
    archive::write(&pool, &file, &image, &mut bytes, &mut |_, _| ()).unwrap();
    bytes
}

/// Puts another model into metadata, behind all else, and makes the checksum right.
pub fn replace_model(metadata: &mut Vec<u8>, model: &Model) -> bool {
    const META_BYTES: usize = 32;
    const MODEL_OFFSET: usize = 40;
    const MODEL_BYTES: usize = 48;
    let encoded = postcard::to_stdvec(model).unwrap();
    let offset = metadata.len();
    metadata.extend(&encoded);
    let length = metadata.len();
    for (at, value) in [(META_BYTES, length), (MODEL_OFFSET, offset), (MODEL_BYTES, encoded.len())]
    {
        metadata[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
    }
    format::reseal(metadata);
    true
}
