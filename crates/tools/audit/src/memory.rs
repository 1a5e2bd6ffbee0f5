//! What each page of the address space is: rights, attributes, and the file behind it.

use std::fs;
use std::io;

use crate::facts::Facts;

/// Flags of a mapping that say how it came about, and not what it does: may be read, written, executed,
/// shared; accounted; without a reservation of swap; soft-dirty; watched by userfaultfd.
const LEFT_OUT: [&str; 10] = ["mr", "mw", "me", "ms", "ac", "nr", "sd", "um", "uw", "ui"];
/// Where the restorer lies in every clone, above and below which no program's memory does.
const WINDOW: std::ops::Range<u64> = 0x4f00_0000_0000..0x4f01_0000_0000;

/// Neighbouring pages that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
    rights: String,
    flags: String,
    /// Path and offset, for a mapped file.
    file: Option<(String, u64)>,
}

/// Reads it.
pub fn read(pid: i32, facts: &mut Facts) -> io::Result<()> {
    for run in merged(runs(&fs::read_to_string(format!("/proc/{pid}/smaps"))?)) {
        let Run { start, end, rights, flags, file } = run;
        let file = file.map(|(path, offset)| format!(" {path} at {offset:#x}")).unwrap_or_default();
        facts.add(format!("memory {start:x}-{end:x}"), format!("{rights} {flags}{file}"));
    }
    Ok(())
}

fn runs(smaps: &str) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if let Some(run) = runs.last_mut() {
                run.flags = kept(flags);
            }
        } else if let Some(key) = line.strip_prefix("ProtectionKey:") {
            if let Some(run) = runs.last_mut() {
                run.rights.push_str(&format!(" key {}", key.trim()));
            }
        } else if let Some(run) = head(line) {
            runs.push(run);
        }
    }
    runs
}

fn head(line: &str) -> Option<Run> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let (rights, offset) = (words.next()?.to_owned(), number(words.next()?)?);
    let path = words.nth(2).unwrap_or_default().trim().to_owned();
    let file = (!path.is_empty()).then_some((path, offset));
    Some(Run { start, end, rights, flags: String::new(), file })
}

fn kept(flags: &str) -> String {
    let kept = flags.split_whitespace().filter(|flag| !LEFT_OUT.contains(flag));
    kept.collect::<Vec<_>>().join(" ")
}

/// Joins what the kernel keeps as several mappings: a clone's memory lies in pieces of its image, private
/// mappings of files as well. So files count where they are shared.
fn merged(runs: Vec<Run>) -> Vec<Run> {
    let mut merged: Vec<Run> = Vec::new();
    for mut run in runs.into_iter().filter(|run| !WINDOW.contains(&run.start)) {
        let is_shared = run.rights.as_bytes().get(3) == Some(&b's');
        run.file = run.file.filter(|(path, _)| is_shared || is_special(path));
        match merged.last_mut() {
            Some(last) if continues(last, &run) => last.end = run.end,
            _ => merged.push(run),
        }
    }
    merged
}

/// Whether it is a mapping that the kernel makes for itself. The heap is known by its addresses.
fn is_special(path: &str) -> bool {
    path.starts_with('[') && path != "[heap]" && !path.starts_with("[anon")
}

fn continues(last: &Run, next: &Run) -> bool {
    let file = match (&last.file, &next.file) {
        (None, None) => true,
        (Some((path, offset)), Some((other, at))) => {
            path == other && (path.starts_with('[') || offset + (last.end - last.start) == *at)
        }
        _ => false,
    };
    last.end == next.start && last.rights == next.rights && last.flags == next.flags && file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_an_image_are_one_run() {
        let smaps = "1000-2000 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr\n\
                     2000-4000 rw-p 00200000 00:1f 9   /pool/images/0123\nVmFlags: rd wr ac\n\
                     4000-5000 rw-s 00003000 fe:00 7   /a file\nVmFlags: rd wr\n\
                     5000-6000 rw-s 00004000 fe:00 7   /a file\nVmFlags: rd wr lo\n";
        let found = merged(runs(smaps));
        let shown: Vec<(u64, u64, &str)> =
            found.iter().map(|run| (run.start, run.end, &*run.flags)).collect();
        assert_eq!(
            shown,
            [(0x1000, 0x4000, "rd wr"), (0x4000, 0x5000, "rd wr"), (0x5000, 0x6000, "rd wr lo")]
        );
        assert_eq!(found[2].file, Some(("/a file".to_owned(), 0x4000)));
    }
}
