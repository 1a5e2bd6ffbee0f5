//! What runs the guest.
//!
//! ```text
//!  page 1      PML4, one entry      page 16     the guest's program
//!  page 2      PDPT                 from 32 on  what the pattern says
//!  pages 3-6   PDs: huge pages of the first 4 GiB, for user mode, accessed and dirty
//! ```
#![allow(unsafe_code)] // reason: KVM maps memory of this process into the guest

use kvm_bindings::{
    KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment, kvm_sregs, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use crate::error::VmmError;
use crate::memory::{Mapping, PAGE_BYTES};
use crate::walk::{Walk, add};

/// Pages that the guest runs from, and those before them.
pub(crate) const RESERVED_PAGES: u64 = 32;

const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PD: u64 = 0x3000;
const PDS: u64 = 4;
const PROGRAM: u64 = 0x10000;
/// The other program, which goes through a list.
const LIST_PROGRAM: u64 = 0x10800;
/// Words of a page.
const PAGE_WORDS: u64 = PAGE_BYTES / 8;

/// Bits of a page table's entry: present, writable, for user mode, accessed, dirty, huge.
const TABLE: u64 = 0x27;
const HUGE: u64 = 0xe7;

/// In: rsi page, r8 multiplier, r9 increment, r10 mask of pages, rcx count, r11 words, rbx whether to write.
/// Out: rax.
const CODE: &[u8] = &[
    0x48, 0x89, 0xf2, //             0: mov rdx, rsi
    0x48, 0xc1, 0xe2, 0x0c, //       3: shl rdx, 12
    0x4d, 0x89, 0xdc, //             7: mov r12, r11
    0x48, 0xc1, 0xc0, 0x05, //      10: rol rax, 5
    0x48, 0x03, 0x02, //            14: add rax, [rdx]
    0x48, 0x83, 0xc2, 0x08, //      17: add rdx, 8
    0x49, 0xff, 0xcc, //            21: dec r12
    0x75, 0xf0, //                  24: jnz 10
    0x48, 0x85, 0xdb, //            26: test rbx, rbx
    0x74, 0x11, //                  29: jz 48
    0x48, 0x83, 0xfe, 0x20, //      31: cmp rsi, 32
    0x72, 0x0b, //                  35: jb 48
    0x48, 0x89, 0xf2, //            37: mov rdx, rsi
    0x48, 0xc1, 0xe2, 0x0c, //      40: shl rdx, 12
    0x48, 0x89, 0x42, 0x08, //      44: mov [rdx + 8], rax
    0x49, 0x0f, 0xaf, 0xf0, //      48: imul rsi, r8
    0x4c, 0x01, 0xce, //            52: add rsi, r9
    0x4c, 0x21, 0xd6, //            55: and rsi, r10
    0x48, 0xff, 0xc9, //            58: dec rcx
    0x75, 0xc1, //                  61: jnz 0
    0xe6, 0x10, //                  63: out 0x10, al
    0xeb, 0xfe, //                  65: jmp 65
];

/// In: rsi address of the list, rcx its entries, r11 words of a page. Out: rax.
const LIST_CODE: &[u8] = &[
    0x8b, 0x16, //                   0: mov edx, [rsi]
    0x48, 0x83, 0xc6, 0x04, //       2: add rsi, 4
    0x89, 0xd3, //                   6: mov ebx, edx
    0x48, 0xd1, 0xea, //             8: shr rdx, 1
    0x48, 0xc1, 0xe2, 0x0c, //      11: shl rdx, 12
    0x49, 0x89, 0xd5, //            15: mov r13, rdx
    0x4d, 0x89, 0xdc, //            18: mov r12, r11
    0x48, 0xc1, 0xc0, 0x05, //      21: rol rax, 5
    0x48, 0x03, 0x02, //            25: add rax, [rdx]
    0x48, 0x83, 0xc2, 0x08, //      28: add rdx, 8
    0x49, 0xff, 0xcc, //            32: dec r12
    0x75, 0xf0, //                  35: jnz 21
    0xf6, 0xc3, 0x01, //            37: test bl, 1
    0x74, 0x04, //                  40: jz 46
    0x49, 0x89, 0x45, 0x08, //      42: mov [r13 + 8], rax
    0x48, 0xff, 0xc9, //            46: dec rcx
    0x75, 0xcd, //                  49: jnz 0
    0xe6, 0x10, //                  51: out 0x10, al
    0xeb, 0xfe, //                  53: jmp 53
];

/// Puts page tables and programs into the memory, word by word.
pub(crate) fn install(store: impl Fn(u64, u64)) {
    store(PML4, PDPT | TABLE);
    for index in 0..PDS {
        store(PDPT + 8 * index, (PD + index * PAGE_BYTES) | TABLE);
        for entry in 0..512 {
            let page = (index * 512 + entry) << 21;
            store(PD + index * PAGE_BYTES + 8 * entry, page | HUGE);
        }
    }
    for (program, code) in [(PROGRAM, CODE), (LIST_PROGRAM, LIST_CODE)] {
        for (index, word) in code.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            store(program + 8 * index as u64, u64::from_le_bytes(bytes));
        }
    }
}

/// What a guest is to do.
pub(crate) enum Job<'a> {
    /// Walk.
    Walk(&'a Walk),
    /// Go through a list at an address of its memory, of so many entries.
    List { at: u64, count: u64 },
}

/// One processor.
pub(crate) enum Processor {
    /// A vCPU.
    Kvm {
        vcpu: Box<VcpuFd>,
        /// Keeps the memory in the guest.
        _machine: VmFd,
    },
    /// A thread of the host, where KVM cannot be used.
    Host,
}

impl Processor {
    /// A processor on this memory, which has to outlive it. Where there is no KVM, the host.
    pub(crate) fn new(memory: &[Mapping]) -> Result<Processor, VmmError> {
        let Ok(kvm) = Kvm::new() else { return Ok(Processor::Host) };
        let machine = kvm.create_vm().map_err(VmmError::kvm("create a virtual machine"))?;
        let mut at = 0;
        for (slot, part) in memory.iter().enumerate() {
            let region = kvm_userspace_memory_region {
                slot: slot as u32,
                guest_phys_addr: at,
                memory_size: part.bytes(),
                userspace_addr: part.address(),
                flags: 0,
            };
            // SAFETY: the mapping lives longer than the machine, and is accessed as volatile words.
            let set = unsafe { machine.set_user_memory_region(region) };
            set.map_err(VmmError::kvm("give memory to a virtual machine"))?;
            at += part.bytes();
        }
        let vcpu = machine.create_vcpu(0).map_err(VmmError::kvm("create a vCPU"))?;
        let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES);
        let cpuid = cpuid.map_err(VmmError::kvm("read the features of processors"))?;
        vcpu.set_cpuid2(&cpuid).map_err(VmmError::kvm("set the features of a vCPU"))?;
        let current = vcpu.get_sregs().map_err(VmmError::kvm("read registers"))?;
        let set = vcpu.set_sregs(&user_mode(current));
        set.map_err(VmmError::kvm("put a vCPU into user mode"))?;
        Ok(Processor::Kvm { vcpu: Box::new(vcpu), _machine: machine })
    }

    /// Runs the guest until its job is done.
    pub(crate) fn run(&mut self, memory: &[Mapping], job: &Job<'_>) -> Result<u64, VmmError> {
        let pages = memory.iter().map(Mapping::bytes).sum::<u64>() / PAGE_BYTES;
        match (self, job) {
            (Processor::Host, Job::Walk(walk)) => Ok(on_host(memory, walk, pages)),
            (Processor::Host, Job::List { at, count }) => Ok(list_on_host(memory, *at, *count)),
            (Processor::Kvm { vcpu, .. }, _) => {
                let start = registers(job, pages);
                vcpu.set_regs(&start).map_err(VmmError::kvm("set registers"))?;
                loop {
                    match vcpu.run() {
                        Ok(VcpuExit::IoOut(_, _)) => break,
                        Ok(VcpuExit::Intr) => {}
                        Ok(other) => return Err(VmmError::Exit(format!("{other:?}"))),
                        Err(error) if error.errno() == libc::EINTR => {}
                        Err(error) => return Err(VmmError::kvm("run a vCPU")(error)),
                    }
                }
                Ok(vcpu.get_regs().map_err(VmmError::kvm("read registers"))?.rax)
            }
        }
    }
}

fn registers(job: &Job<'_>, pages: u64) -> kvm_regs {
    // With the right to use ports, and the bit that is always set.
    let rflags = 0x3002;
    let walk = match job {
        Job::Walk(walk) => walk,
        Job::List { at, count } => {
            let (rsi, rcx, r11) = (*at, *count, PAGE_WORDS);
            return kvm_regs { rip: LIST_PROGRAM, rflags, rsi, rcx, r11, ..kvm_regs::default() };
        }
    };
    kvm_regs {
        rip: PROGRAM,
        rflags,
        rsi: walk.first & (pages - 1),
        r8: walk.multiplier,
        r9: walk.increment,
        r10: pages - 1,
        r11: walk.words,
        rcx: walk.count,
        rbx: u64::from(walk.writes),
        ..kvm_regs::default()
    }
}

/// 64-bit user mode with paging.
fn user_mode(current: kvm_sregs) -> kvm_sregs {
    let segment = |selector, type_, l, db| kvm_segment {
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        dpl: 3,
        db,
        s: 1,
        l,
        g: 1,
        ..kvm_segment::default()
    };
    let data = segment(0x2b, 3, 0, 1);
    kvm_sregs {
        // Protected mode, paging, write protection; PAE, SSE; long mode, system calls, no-execute.
        cr0: 0x8005_0033,
        cr3: PML4,
        cr4: 0x620,
        efer: 0xd01,
        cs: segment(0x33, 0xb, 1, 0),
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        ..current
    }
}

/// The part of the memory that an address of the guest lies in, and where.
fn part_at(memory: &[Mapping], address: u64) -> (&Mapping, u64) {
    let part_bytes = memory[0].bytes();
    (&memory[(address / part_bytes) as usize], address % part_bytes)
}

/// What the guest does with a list, done by the host.
fn list_on_host(memory: &[Mapping], list: u64, count: u64) -> u64 {
    let load = |address: u64| {
        let (part, offset) = part_at(memory, address);
        part.load(offset)
    };
    let mut mixed = 0;
    for index in 0..count {
        let entry = load(list + index / 2 * 8) >> (32 * (index % 2)) & 0xffff_ffff;
        let page = (entry >> 1) * PAGE_BYTES;
        mixed = (0..PAGE_WORDS).fold(mixed, |mixed, word| add(mixed, load(page + word * 8)));
        if entry & 1 != 0 {
            let (part, offset) = part_at(memory, page + 8);
            part.store(offset, mixed);
        }
    }
    mixed
}

/// What the guest does, done by the host.
fn on_host(memory: &[Mapping], walk: &Walk, pages: u64) -> u64 {
    let at = |address: u64| part_at(memory, address);
    let mut mixed = 0;
    for page in walk.pages(pages) {
        for word in 0..walk.words {
            let (part, offset) = at(page * PAGE_BYTES + word * 8);
            mixed = add(mixed, part.load(offset));
        }
        if walk.writes && page >= RESERVED_PAGES {
            let (part, offset) = at(page * PAGE_BYTES + 8);
            part.store(offset, mixed);
        }
    }
    mixed
}
