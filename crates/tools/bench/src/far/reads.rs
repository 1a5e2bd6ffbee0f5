//! Reads of a far file of which nothing is cached.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use farfork_types::PAGE_BYTES;
use rustix::fs::{Advice, fadvise};

use super::Image;
use crate::error::{BenchError, io};
use crate::samples::Samples;
use crate::stats::percentile;

const BATCHES: [(u64, &str); 3] = [
    (1, "random read of 1 page"),
    (32, "random read of 32 pages"),
    (128, "random read of 128 pages"),
];
/// Readers at once, each of pages that no other reads.
const AT_ONCE: [(u64, &str); 4] = [
    (1, "P99 of reads of 1 page, 1 reader"),
    (4, "P99 of reads of 1 page, 4 readers"),
    (16, "P99 of reads of 1 page, 16 readers"),
    (32, "P99 of reads of 1 page, 32 readers"),
];
const SEQUENTIAL: &str = "64 MiB in order";
/// Reads of one size in one round.
const READS: u64 = 40;
const WHOLE_BYTES: u64 = 64 << 20;
const PIECE_BYTES: usize = 1 << 20;
const CASE: &str = "far file";

/// Measures once, by this transport.
pub fn measure(transport: &str, image: &Image, samples: &mut Samples) -> Result<(), BenchError> {
    let case = &format!("{CASE}, {transport}");
    for (pages, metric) in BATCHES {
        image.drop_cached()?;
        advise(&image.far, Advice::Random)?;
        samples.add(case, metric, "us", batch_us(image, pages)?);
    }
    for (readers, metric) in AT_ONCE {
        image.drop_cached()?;
        samples.add(case, metric, "us", percentile(&at_once_us(image, readers)?, 99));
    }
    image.drop_cached()?;
    advise(&image.far, Advice::Normal)?;
    samples.add(case, SEQUENTIAL, "MB/s", in_order(&image.far, image)?);
    samples.add(&format!("{case}, cached"), SEQUENTIAL, "MB/s", in_order(&image.far, image)?);
    samples.add("pool file", SEQUENTIAL, "MB/s", in_order(&image.near, image)?);
    Ok(())
}

fn advise(file: &File, advice: Advice) -> Result<(), BenchError> {
    fadvise(file, 0, None, advice).map_err(|errno| io("advise", "a far image")(errno.into()))
}

/// Microseconds of one read, at places that no read before has cached.
fn batch_us(image: &Image, pages: u64) -> Result<f64, BenchError> {
    let bytes = (pages * PAGE_BYTES) as usize;
    let (mut into, mut expected) = (vec![0; bytes], vec![0; bytes]);
    let slots = image.bytes / bytes as u64;
    let reads = READS.min(slots);
    let mut ns = 0;
    for read in 0..reads {
        // A step that shares no divisor with most numbers of slots: places far apart, each once.
        let at = read * (slots / reads) * bytes as u64;
        let begun = Instant::now();
        image.far.read_exact_at(&mut into, at).map_err(io("read", "a far image"))?;
        ns += begun.elapsed().as_nanos();
        image.near.read_exact_at(&mut expected, at).map_err(io("read", "an image"))?;
        compare(&into, &expected)?;
    }
    Ok(ns as f64 / 1000.0 / reads as f64)
}

/// Microseconds of each read of so many readers.
fn at_once_us(image: &Image, readers: u64) -> Result<Vec<f64>, BenchError> {
    let places = image.bytes / PAGE_BYTES;
    let step = places / (readers * READS).min(places);
    let read_all = |reader: u64| -> Result<Vec<f64>, BenchError> {
        let mut each = Vec::new();
        let (mut into, mut expected) = ([0; PAGE_BYTES as usize], [0; PAGE_BYTES as usize]);
        for read in 0..READS {
            let at = (read * readers + reader) * step % places * PAGE_BYTES;
            let begun = Instant::now();
            image.far.read_exact_at(&mut into, at).map_err(io("read", "a far image"))?;
            each.push(begun.elapsed().as_nanos() as f64 / 1000.0);
            image.near.read_exact_at(&mut expected, at).map_err(io("read", "an image"))?;
            compare(&into, &expected)?;
        }
        Ok(each)
    };
    let each = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..readers).map(|n| scope.spawn(move || read_all(n))).collect();
        let ended = readers.into_iter().map(|reader| {
            let panicked =
                || Err(io("read", "a far image")(std::io::Error::other("a reader panicked")));
            reader.join().unwrap_or_else(|_| panicked())
        });
        ended.collect::<Result<Vec<_>, _>>()
    })?;
    Ok(each.concat())
}

fn in_order(file: &File, image: &Image) -> Result<f64, BenchError> {
    let mut into = vec![0; PIECE_BYTES];
    let mut ns = 0;
    let mut expected = vec![0; PIECE_BYTES];
    let mut done = 0;
    while done + PIECE_BYTES as u64 <= WHOLE_BYTES.min(image.bytes) {
        let begun = Instant::now();
        file.read_exact_at(&mut into, done).map_err(io("read", "an image"))?;
        ns += begun.elapsed().as_nanos();
        black_box(&into);
        image.near.read_exact_at(&mut expected, done).map_err(io("read", "an image"))?;
        compare(&into, &expected)?;
        done += PIECE_BYTES as u64;
    }
    Ok(done as f64 * 1000.0 / ns as f64)
}

fn compare(read: &[u8], expected: &[u8]) -> Result<(), BenchError> {
    if read == expected {
        return Ok(());
    }
    let reason = "far memory has other bytes than the pool".to_owned();
    Err(BenchError::Answer { case: CASE.to_owned(), reason })
}
