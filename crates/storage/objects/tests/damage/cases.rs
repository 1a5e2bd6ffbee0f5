//! Which words are damaged, and how.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use farfork::layout::{FREE, SPAN_BYTES};
use farfork::{Client, Node, Platform, Region, Timeout};

use crate::Trusting;
use crate::operations::use_all;
use crate::stage::{BYTES, Clients, Image, Object, SLOTS, create_at, dead, place, set_up};

// From the drawing in `layout.rs`.
const CLIENTS_AT: u64 = 4096;
const MAILBOXES_AT: u64 = 36_864;
const OPERATIONS_AT: u64 = 307_200;
const LOCKS_AT: u64 = 309_248;
const SPANS_AT: u64 = 315_392;
const OWNERS_AT: u64 = BYTES - BYTES / 16;

/// Without `FARFORK_TEST_LONG`, one of so many cases.
const STRIDE: usize = 59;

/// One of so many cases has calls that wait.
const WITH_WAITS: usize = 8;

/// Cases that a child runs.
#[derive(Clone, Copy)]
pub struct Job {
    /// Whether the clients have died before, so that the damage meets their recovery.
    is_dead: bool,
    is_checked: bool,
}

impl Job {
    /// Damaged slots, and receivers that do not look at them.
    pub const SEEDED: &str = "seeded";

    pub fn all() -> Vec<Job> {
        [(true, false), (false, false), (true, true), (false, true)]
            .map(|(is_dead, is_checked)| Job { is_dead, is_checked })
            .into()
    }

    pub fn role(self) -> String {
        let state = if self.is_dead { "dead" } else { "living" };
        let kind = if self.is_checked { "checked" } else { "plain" };
        format!("{state} clients, {kind} region")
    }
}

/// Runs the cases of a role; `say` learns the name of each one before it begins.
pub fn run(role: &str, mut say: impl FnMut(String)) {
    let found = Job::all().into_iter().find(|job| job.role() == role);
    let job = found.unwrap_or(Job { is_dead: false, is_checked: false });
    let is_seeded = role == Job::SEEDED;
    let (_directory, path) = place();
    let image = dead(job.is_checked);
    let mut bystander = Bystander::new(word(&image, 24));
    let is_long = std::env::var_os("FARFORK_TEST_LONG").is_some();
    let stride = if is_long || is_seeded { 1 } else { STRIDE };
    let only = std::env::var("FARFORK_TEST_CASE").ok();
    let places = if is_seeded { slots().collect() } else { places(&image) };
    let cases =
        places.iter().flat_map(|place| (0..values(place, &image).len()).map(move |n| (place, n)));
    for (number, (place, value)) in cases.enumerate() {
        let name = format!("{role}, {} at {}, damage {value}", place.name, place.at);
        if only.as_ref().map_or(number % stride != 0, |only| !name.starts_with(only)) {
            continue;
        }
        say(name);
        match is_seeded {
            false => case::<Node>(&path, job, &image, &mut bystander, (place, value, number)),
            true => case::<Trusting>(&path, job, &image, &mut bystander, (place, value, number)),
        }
    }
    bystander.is_clean();
}

fn case<P: Platform + 'static>(
    path: &Path,
    job: Job,
    image: &Image,
    bystander: &mut Bystander,
    (place, value, number): (&Place, usize, usize),
) {
    let _ = std::fs::remove_file(path);
    let (clients, objects) = match job.is_dead {
        true => {
            std::fs::write(path, &image.bytes).expect("the region");
            damage(path, place, value, image);
            (open(path), image.objects.clone())
        }
        false => {
            create_at(path, job.is_checked, |address| address != bystander.address());
            let Clients { clients, objects } = set_up::<P>(path);
            damage(path, place, value, image);
            (Some(clients), objects)
        }
    };
    bystander.works();
    if let Some(mut clients) = clients {
        use_all(&mut clients, &objects, number % WITH_WAITS == 0);
    }
    if let Ok(region) = Region::<P>::open(path) {
        let _ = region.recover();
        if number % WITH_WAITS == 1 {
            let _ = region.check();
        }
    }
    bystander.works();
}

fn open<P: Platform>(path: &Path) -> Option<[Client<P>; 2]> {
    Some([Client::open_on(path).ok()?, Client::open_on(path).ok()?])
}

/// A word of the region.
#[derive(Clone)]
pub struct Place {
    name: &'static str,
    at: u64,
}

fn words(name: &'static str, at: u64, count: u64) -> impl Iterator<Item = Place> {
    (0..count).map(move |word| Place { name, at: at + 8 * word })
}

fn slots() -> impl Iterator<Item = Place> {
    words("slot of mailbox", MAILBOXES_AT + 256, SLOTS)
}

/// All tables, owner bytes where there are objects, and what the library keeps in objects.
fn places(image: &Image) -> Vec<Place> {
    let mut places: Vec<Place> = words("client", CLIENTS_AT, 3 * 32).collect();
    for mailbox in 0..3 {
        let at = MAILBOXES_AT + 8448 * mailbox;
        places.extend(words("mailbox", at, 28).chain(words("slot of mailbox", at + 256, SLOTS)));
    }
    places.extend(words("operation", OPERATIONS_AT, 32));
    places.extend(words("lock", LOCKS_AT, 6 * 8));
    places.extend(words("span", SPANS_AT, OWNERS_AT / SPAN_BYTES));
    places.extend(words("marks", SPANS_AT + 8 * (OWNERS_AT / SPAN_BYTES), 3));
    let owners = words("owner bytes", OWNERS_AT, BYTES / 16 / 8);
    places.extend(owners.filter(|place| word(image, place.at) != u64::from(FREE)));
    for object in &image.objects {
        places.extend(words("object", offset(image, *object) - 16, 6));
    }
    // Records of shared structures and intents of operations are large objects that no user has.
    for at in (0..BYTES / 16).filter(|granule| is_own(image, *granule)).map(|granule| 16 * granule)
    {
        places.extend(words("record or intent", at, 30));
        places.extend(words("record or intent", at + 1088, 10));
    }
    places
}

/// Whether an object of the library begins there.
fn is_own(image: &Image, granule: u64) -> bool {
    let owner = image.bytes[(OWNERS_AT + granule) as usize];
    let at = (16 * granule) as usize;
    owner == 253 || owner != FREE && image.bytes[at + 4..at + 8] == *b"FFGU"
}

fn word(image: &Image, at: u64) -> u64 {
    let bytes = image.bytes[at as usize..][..8].try_into().expect("8 bytes");
    u64::from_le_bytes(bytes)
}

fn offset(image: &Image, object: Object) -> u64 {
    object.addr().get() as u64 - word(image, 24)
}

/// What a word becomes: changes of it, and words that mean something elsewhere.
fn values(place: &Place, image: &Image) -> Vec<u64> {
    let found = word(image, place.at);
    let flips = [0, 1, 3, 8, 10, 16, 20, 24, 32, 40, 56, 63].map(|bit| found ^ 1 << bit);
    let mut values: Vec<u64> = flips.into();
    values.extend([0, 1, 2, 3, u64::MAX, found.wrapping_add(1), found.wrapping_sub(1)]);
    values.extend([1 << 32 | 2, 0xffff_ffff, 60, 253, 254, 255, 256 + 1, place.at]);
    let with_references = &image.objects[image.objects.len() - 7..];
    for object in with_references.iter().step_by(2).chain(&image.objects[3..4]) {
        let at = offset(image, *object);
        let tag = word(image, 32) << 48;
        values.extend([at / 16, at / 16 + 1, tag | at, found & !0xffff_ffff | (at / 16 + 1)]);
    }
    values
}

fn damage(path: &Path, place: &Place, value: usize, image: &Image) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the region");
    let mut image_now = Image { bytes: vec![0; BYTES as usize], objects: image.objects.clone() };
    read(&file, &mut image_now.bytes);
    // Objects lie at the same offsets; the region may lie at another address.
    let moved = word(&image_now, 24).wrapping_sub(word(image, 24)) as isize;
    for object in &mut image_now.objects {
        *object = object.map_addr(|address| {
            std::num::NonZero::new(address.get().wrapping_add_signed(moved)).expect("an address")
        });
    }
    let values = values(place, &image_now);
    file.write_all_at(&values[value].to_le_bytes(), place.at).expect("a word");
}

fn read(file: &File, bytes: &mut [u8]) {
    file.read_exact_at(bytes, 0).expect("the region");
}

/// A client of another region.
struct Bystander {
    _directory: tempfile::TempDir,
    client: Client,
    mailbox: farfork::Mailbox,
}

impl Bystander {
    /// Not at the address of the other region.
    fn new(other: u64) -> Bystander {
        let (directory, path) = place();
        create_at(&path, false, |address| address != other);
        let mut client = Client::open(&path).expect("a client");
        let mailbox = client.mailbox("m", 4).expect("a mailbox");
        Bystander { _directory: directory, client, mailbox }
    }

    fn address(&self) -> u64 {
        self.client.region().header().address
    }

    fn works(&mut self) {
        let object = self.client.allocate(64).expect("an object");
        assert!(self.client.send(self.mailbox, object, Timeout::Poll).expect("a sender"));
        let received = self.client.receive(self.mailbox, Timeout::Poll).expect("a receiver");
        assert_eq!(received, Some(object));
        self.client.free(object).expect("its own");
    }

    fn is_clean(&self) {
        let check = self.client.region().check().expect("a check");
        assert!(check.is_clean() && check.bytes_free == check.bytes, "{check:?}");
    }
}
