//! The address space: which mappings there are, which can be carried, and which pages have
//! content.

use std::fs::File;

use farfork_image::layout;
use farfork_image::model::{Backing, FileStamp, Memory, Region, RegionTraits, Stored};
use farfork_sys::memory;
use farfork_types::{PAGE_BYTES, align_up};

use crate::ancestor::Ancestor;
use crate::error::{CheckpointError, doing};
use crate::files::MappedFiles;
use crate::maps::Mapping;
use crate::refuse::{Cause, Refusals, causes};
use crate::runs::{self, Run};
use crate::shared::Objects;

/// Private file mappings up to this size are carried whole, larger ones where the parent has
/// touched them: the rest is then mapped from the file itself.
const WHOLE_FILE_BYTES: u64 = 64 << 20;

/// Splits the kernel's own mappings (vvar, vdso) off; returns their range and the vDSO's alone.
pub fn kernel_range(mappings: &[Mapping]) -> (Run, Run) {
    let of = |prefix: &str| {
        let mut own = mappings.iter().filter(|m| m.name.starts_with(prefix));
        own.next().map(|first| (first.start, own.next_back().map_or(first.end, |last| last.end)))
    };
    let vdso = of("[vdso]").unwrap_or((0, 0));
    (of("[v").filter(|_| vdso.0 != 0).map_or(vdso, |all| (all.0, vdso.1)), vdso)
}

/// Regions, and those among them that are carried whole, as they are mapped from a pool.
#[derive(Default)]
struct Regions {
    /// All of them, in address order.
    all: Vec<Region>,
    whole: Vec<Run>,
}

/// Turns mappings into regions, refusing those that cannot be carried. A clone's mappings of its
/// `ancestor` are what they were to the parent.
fn regions(
    pid: i32,
    mappings: &[Mapping],
    ancestor: Option<&Ancestor>,
    objects: &Objects,
    refusals: &mut Refusals,
) -> Regions {
    let mut regions = Regions::default();
    let mut files = MappedFiles::new(pid);
    let is_program = |mapping: &&Mapping| {
        !is_kernels(mapping)
            && !mapping.is_aio_ring()
            && !mapping.is_ring()
            && ancestor.is_none_or(|ancestor| !ancestor.owns(mapping))
    };
    for mapping in mappings.iter().filter(is_program) {
        let ancestor = ancestor.filter(|ancestor| ancestor.backs(mapping));
        let files = Some(&mut files).filter(|_| ancestor.is_none());
        let is_profiled = ancestor.is_some() && is_profiled(pid, mapping);
        let is_served = ancestor.is_some_and(|ancestor| ancestor.serves(mapping));
        let mapping = &as_known(mapping, is_profiled, is_served);
        let Some(region) = region(pid, mapping, files, objects, refusals) else { continue };
        match ancestor {
            Some(ancestor) => {
                regions.whole.push((region.start, region.end));
                let regions_of = ancestor.regions(&region, mapping.offset, is_profiled);
                regions.all.extend(regions_of);
            }
            None => regions.all.extend(split_at_file_end(region)),
        }
    }
    regions
}

/// Whether farfork watches a mapping of the image, to see which pages the clone touches. The
/// program does not see the difference.
pub fn is_profiled(pid: i32, mapping: &Mapping) -> bool {
    let may_be = mapping.has("uw") && !mapping.has("um") && !mapping.has("ui");
    let look = || memory::is_watched(&open_pagemap(pid).ok()?, mapping.start).ok();
    may_be && look() == Some(true)
}

/// The mapping as the program knows it, which farfork has registered with userfaultfd.
fn as_known(mapping: &Mapping, is_profiled: bool, is_served: bool) -> Mapping {
    let farforks: &[&str] = match (is_profiled, is_served) {
        (true, _) => &["uw", "nh", "hg"],
        (_, true) => &["ui"],
        _ => &[],
    };
    let mut mapping = mapping.clone();
    mapping.flags.retain(|flag| !farforks.contains(&flag.as_str()));
    mapping
}

impl Regions {
    fn is_whole(&self, region: &Region) -> bool {
        let after = self.whole.partition_point(|run| run.1 <= region.start);
        self.whole.get(after).is_some_and(|run| run.0 <= region.start)
    }
}

/// What a mapping shows beyond the end of its file faults, and must go on doing so.
fn split_at_file_end(region: Region) -> Vec<Region> {
    let Backing::PrivateFile(file, offset) = &region.backing else { return vec![region] };
    let held = align_up(file.size, PAGE_BYTES).saturating_sub(*offset);
    let end = region.start + held;
    if end <= region.start || end >= region.end {
        return vec![region];
    }
    let beyond = Backing::PrivateFile(file.clone(), offset + held);
    let tail = Region { start: end, backing: beyond, ..region.clone() };
    vec![Region { end, ..region }, tail]
}

fn is_kernels(mapping: &Mapping) -> bool {
    ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]"].contains(&mapping.name.as_str())
}

/// The region of a mapping, which shows one of `objects`, or one of `files` unless those are not
/// asked for.
fn region(
    pid: i32,
    mapping: &Mapping,
    files: Option<&mut MappedFiles>,
    objects: &Objects,
    refusals: &mut Refusals,
) -> Option<Region> {
    if objects.has_refused(pid, mapping) {
        return None;
    }
    let object = format!("mapping {:x}-{:x} {}", mapping.start, mapping.end, mapping.name);
    let under = objects.under(pid, mapping);
    let stamp = match (obstacle(mapping, under.is_some()), files) {
        (Some(obstacle), _) => Err(obstacle),
        (None, Some(files)) if under.is_none() && !mapping.is_huge_anonymous() => {
            files.stamp(mapping)
        }
        (None, _) => Ok(None),
    };
    let stamp = match stamp {
        Ok(stamp) => stamp,
        Err(cause) => {
            refusals.add(object, cause);
            return None;
        }
    };
    let is_huge = mapping.is_huge_anonymous();
    Some(Region {
        start: mapping.start,
        end: mapping.end,
        prot: mapping.prot,
        backing: under
            .map_or_else(|| backing(mapping, stamp), |object| backing_of(object, mapping)),
        traits: RegionTraits {
            grows_down: mapping.has("gd"),
            no_reserve: if is_huge { mapping.has("nr") } else { !mapping.has("ac") },
            page_shift: if is_huge {
                mapping.page_bytes.checked_ilog2().unwrap_or(0) as u8
            } else {
                0
            },
            wipe_on_fork: mapping.has("wf"),
            droppable: mapping.has("dp"),
            locked: mapping.has("lo"),
            dont_fork: mapping.has("dc"),
            dont_dump: mapping.has("dd"),
            huge: mapping.has("hg"),
            no_huge: mapping.has("nh"),
            mergeable: mapping.has("mg"),
            sealed: mapping.has("sl"),
            protection_key: mapping.protection_key,
        },
    })
}

/// Why a mapping cannot be carried.
fn obstacle(mapping: &Mapping, is_object: bool) -> Option<&'static Cause> {
    let is_device = mapping.has("io") || mapping.has("pf");
    let is_unnamed = mapping.path().is_none() || mapping.is_deleted();
    [
        (mapping.reaches_restorer_window(), causes::memory::WINDOW),
        (is_device, causes::memory::DEVICE),
        (mapping.has("ht") && !mapping.is_huge_anonymous(), causes::memory::HUGETLB),
        (mapping.has("um") || mapping.has("uw") || mapping.has("ui"), causes::memory::USERFAULTFD),
        (mapping.has("ss"), causes::memory::SHADOW_STACK),
        (mapping.is_shared && is_unnamed && !is_object, causes::memory::UNKNOWN_SHARED),
    ]
    .into_iter()
    .find(|(applies, _)| *applies)
    .map(|(_, cause)| cause)
}

fn backing_of(object: u32, mapping: &Mapping) -> Backing {
    let (is_shared, is_writable) = (mapping.is_shared, mapping.has("mw"));
    Backing::Object { object, offset: mapping.offset, is_shared, is_writable }
}

fn backing(mapping: &Mapping, stamp: Option<FileStamp>) -> Backing {
    match stamp {
        Some(file) if mapping.is_shared => {
            Backing::SharedFile { file, offset: mapping.offset, is_writable: mapping.has("mw") }
        }
        Some(file) => Backing::PrivateFile(file, mapping.offset),
        None => Backing::Anonymous,
    }
}

/// Keys that are not among the `allocated` ones are the kernel's own, for memory that can only be
/// executed.
fn forget_kernel_keys(regions: &mut [Region], allocated: u32) {
    for region in regions.iter_mut() {
        if allocated >> region.traits.protection_key & 1 == 0 {
            region.traits.protection_key = 0;
        }
    }
}

/// Guard regions of the process.
fn guards(pid: i32, regions: &[Region]) -> Result<Vec<Run>, CheckpointError> {
    let pagemap = open_pagemap(pid)?;
    let mut guards = Vec::new();
    for region in regions {
        let found = memory::guards(&pagemap, region.start, region.end)
            .map_err(doing(pid, "find the guard pages"))?;
        guards.extend(found.iter().map(|run| (run.start, run.end)));
    }
    Ok(guards)
}

fn open_pagemap(pid: i32) -> Result<File, CheckpointError> {
    File::open(format!("/proc/{pid}/pagemap"))
        .map_err(|_| CheckpointError::Proc { pid, what: "the page map" })
}

/// The pages to copy: what has content, and all of a file that is carried whole.
fn runs(pid: i32, regions: &Regions, guards: &[Run]) -> Result<Vec<Run>, CheckpointError> {
    let pagemap = open_pagemap(pid)?;
    let mut runs: Vec<Run> = Vec::new();
    for region in &regions.all {
        if regions.is_whole(region) {
            runs.push((region.start, region.end));
            continue;
        }
        match &region.backing {
            Backing::SharedFile { .. } | Backing::Object { is_shared: true, .. } => {}
            // The rest is the object's own.
            Backing::Object { .. } => {
                runs.extend(changed(pid, &pagemap, region.start, region.end)?);
            }
            Backing::PrivateFile(file, offset) => {
                let held = align_up(file.size, PAGE_BYTES).saturating_sub(*offset);
                let end = region.end.min(region.start + held);
                if end - region.start <= WHOLE_FILE_BYTES {
                    runs.extend((end > region.start).then_some((region.start, end)));
                } else {
                    let touched = touched(pid, &pagemap, region.start, end)?;
                    runs.extend(runs::whole_windows(&touched, region.start, end));
                }
            }
            Backing::Anonymous if region.traits.droppable => {}
            Backing::Anonymous => runs.extend(touched(pid, &pagemap, region.start, region.end)?),
        }
    }
    Ok(runs::without(runs, guards))
}

fn touched(pid: i32, pagemap: &File, start: u64, end: u64) -> Result<Vec<Run>, CheckpointError> {
    present(pid, pagemap, start, end, |_| true)
}

/// Pages of a private mapping that differ from those of its file.
fn changed(pid: i32, pagemap: &File, start: u64, end: u64) -> Result<Vec<Run>, CheckpointError> {
    present(pid, pagemap, start, end, |run| run.categories & memory::PAGE_FILE == 0)
}

fn present(
    pid: i32,
    pagemap: &File,
    start: u64,
    end: u64,
    is_wanted: impl Fn(&memory::PageRun) -> bool,
) -> Result<Vec<Run>, CheckpointError> {
    let found = memory::pages_with_content(pagemap, start, end)
        .map_err(doing(pid, "find the pages in use (PAGEMAP_SCAN, Linux 6.7)"))?;
    let mut runs: Vec<Run> = Vec::new();
    for run in found.into_iter().filter(is_wanted) {
        match runs.last_mut() {
            Some(last) if last.1 == run.start => last.1 = run.end,
            _ => runs.push((run.start, run.end)),
        }
    }
    Ok(runs)
}

/// What an address space holds.
pub struct AddressSpace {
    regions: Regions,
    guards: Vec<Run>,
    /// The pages to copy.
    runs: Vec<Run>,
    kernel: Run,
}

impl AddressSpace {
    /// Looks at the memory of a process that stands still, which has these mappings.
    pub fn look(
        pid: i32,
        mappings: &[Mapping],
        ancestor: Option<&Ancestor>,
        objects: &Objects,
        refusals: &mut Refusals,
    ) -> Result<AddressSpace, CheckpointError> {
        let kernel = kernel_range(mappings).0;
        let regions = regions(pid, mappings, ancestor, objects, refusals);
        let guards = guards(pid, &regions.all)?;
        let runs = runs(pid, &regions, &guards)?;
        Ok(AddressSpace { regions, guards, runs, kernel })
    }

    /// Adds itself to what [`crate::process`] knows of `memory`, laid out in chunks from number `first` of
    /// an image on. Returns the pages to copy.
    pub fn put_into(self, memory: &mut Memory, first: u64) -> Vec<Run> {
        let AddressSpace { mut regions, guards, runs, kernel } = self;
        forget_kernel_keys(&mut regions.all, memory.protection_keys);
        let windows = runs::windows(&runs);
        let segments = layout::segments(&regions.all, &windows, first);
        memory.regions = regions.all;
        memory.stored = Stored { windows, segments };
        memory.guards = guards;
        memory.vdso = (kernel.0, kernel.1 - kernel.0);
        runs
    }
}
