//! What a trial of an image executes, and what it does not: see [`farfork_plan::trial`].

use farfork_plan::trial::withheld;
use farfork_plan::{Birth, MemberPlan, Op, PlanHeader, Table, ThreadPlan, nr, window};
use zerocopy::FromBytes;

/// What a trial comes to, worked out from the plan alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// How many ops are executed.
    pub ran: u64,
    /// Those that are not.
    pub skipped: Vec<Skipped>,
    /// Bytes of memory that the clone gets of its own.
    pub copied_bytes: u64,
}

/// An op that is not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// What it does.
    pub op: String,
    /// Why it is not executed.
    pub why: &'static str,
}

/// Why no process of a tree installs its filters.
const FILTERED: &str =
    "a process behind its filters cannot report while others of the tree are still being made";

impl Outline {
    /// The outline of `plan`.
    pub fn from_plan(plan: &[u8]) -> Outline {
        let plan = Plan { bytes: plan };
        let mut outline = Outline::default();
        let Ok((header, _)) = PlanHeader::read_from_prefix(plan.bytes) else { return outline };
        for birth in plan.elements::<Birth>(header.births) {
            outline.add(&plan, birth.ops);
        }
        for (index, member) in plan.elements::<MemberPlan>(header.members).into_iter().enumerate() {
            let MemberPlan { memory_ops, task_ops, late_ops, .. } = member;
            let MemberPlan { settle_ops, joined_ops, stop_ops, .. } = member;
            for ops in [memory_ops, task_ops, late_ops, settle_ops, joined_ops] {
                outline.add(&plan, ops);
            }
            match index {
                0 => outline.add(&plan, stop_ops),
                // Their parents wait until they have.
                _ => outline.ran += stop_ops.count,
            }
            for thread in plan.elements::<ThreadPlan>(member.threads) {
                outline.add(&plan, thread.ops);
                if header.births.count == 0 {
                    outline.add(&plan, thread.last_ops);
                } else if thread.last_ops.count > 0 {
                    let op = format!("install the seccomp filters of thread {}", thread.tid);
                    outline.skipped.push(Skipped { op, why: FILTERED });
                }
            }
        }
        outline
    }

    fn add(&mut self, plan: &Plan<'_>, ops: Table) {
        for op in plan.elements::<Op>(ops) {
            self.copied_bytes += copied_bytes(&op);
            match withheld(&op, |at, bytes| plan.at(at, bytes)) {
                None => self.ran += 1,
                Some(kind) => {
                    let op = format!("{} {}", kind.verb(), plan.text(op.detail));
                    let op = op.trim_end().to_owned();
                    self.skipped.push(Skipped { op, why: kind.why() });
                }
            }
        }
    }
}

/// Bytes that an op copies, or that the kernel copies to lock them.
fn copied_bytes(op: &Op) -> u64 {
    match op.nr {
        nr::WRITE_ALL | nr::READ_ALL => op.args[2],
        number if [libc::SYS_mlock, libc::SYS_mlock2].contains(&number.into()) => op.args[1],
        _ => 0,
    }
}

/// A plan that is read, not mapped at its place.
struct Plan<'p> {
    bytes: &'p [u8],
}

impl<'p> Plan<'p> {
    fn at(&self, address: u64, bytes: usize) -> Option<&'p [u8]> {
        let start = usize::try_from(address.checked_sub(window::PLAN)?).ok()?;
        self.bytes.get(start..start.checked_add(bytes)?)
    }

    /// What lies outside of a plan is not there.
    fn elements<T: FromBytes>(&self, table: Table) -> Vec<T> {
        let bytes = (table.count as usize).saturating_mul(size_of::<T>());
        let found = self.at(table.address, bytes).unwrap_or_default();
        found.chunks_exact(size_of::<T>()).filter_map(|one| T::read_from_bytes(one).ok()).collect()
    }

    fn text(&self, offset: u32) -> String {
        let rest = self.bytes.get(offset as usize..).filter(|_| offset != 0).unwrap_or_default();
        let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_plan::What;
    use farfork_plan::place::Identity;
    use farfork_plan::trial::Withheld;
    use zerocopy::IntoBytes;

    /// An op with `data` in the plan, whose address is its argument `at`.
    fn reason(what: What, number: u32, args: &[u64], at: usize, data: &[u8]) -> Option<Withheld> {
        let mut bytes = vec![0u8; 64];
        bytes.extend_from_slice(data);
        bytes.resize(256, 0);
        let mut op = Op::new(what, number, args);
        op.args[at] = window::PLAN + 64;
        let plan = Plan { bytes: &bytes };
        withheld(&op, |at, bytes| plan.at(at, bytes))
    }

    fn bind(number: u32, address: &[u8]) -> Option<Withheld> {
        reason(What::Address, number, &[0, 0, address.len() as u64], 1, address)
    }

    #[test]
    fn only_addresses_that_are_the_nodes_are_withheld() {
        let bind_it = libc::SYS_bind as u32;
        assert_eq!(bind(nr::BIND, b"\x01\0/run/x\0"), Some(Withheld::Path));
        assert_eq!(bind(bind_it, b"\x01\0x\0"), Some(Withheld::Path));
        assert_eq!(bind(bind_it, b"\x01\0\0abstract"), None);
        assert_eq!(bind(bind_it, &[2, 0, 0, 80, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        let mut six = [0u8; 28];
        six[0] = 10;
        assert_eq!(bind(bind_it, &six), None);
        six[24] = 3;
        assert_eq!(bind(bind_it, &six), Some(Withheld::Interface));
        let packet = |interface| [17, 0, 8, 0, interface, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(bind(bind_it, &packet(0)), None);
        assert_eq!(bind(bind_it, &packet(2)), Some(Withheld::Interface));
    }

    #[test]
    fn only_files_that_others_notice_are_withheld() {
        let open = |mode: u32, device: u64, flags: i32| {
            let of = Identity { mode: mode << 12, device, ..Identity::default() };
            reason(What::File, nr::OPEN, &[0, flags as u64], 2, of.as_bytes())
        };
        let (regular, fifo, character, block) = (0o10, 1, 2, 6);
        assert_eq!(open(regular, 0, libc::O_RDWR), None);
        assert_eq!(open(fifo, 0, libc::O_RDWR), Some(Withheld::Opening));
        assert_eq!(open(fifo, 0, libc::O_PATH), None);
        assert_eq!(open(character, 1 << 32 | 3, libc::O_RDWR), None, "/dev/null");
        assert_eq!(open(character, 4 << 32 | 64, libc::O_RDWR), Some(Withheld::Opening));
        assert_eq!(open(block, 8 << 32, libc::O_RDONLY), Some(Withheld::Opening));
    }

    #[test]
    fn locks_rules_and_interfaces_are_withheld_and_comparing_is_not() {
        let lock = |number| reason(What::Lock, number, &[3, 0, 0], 1, &[]);
        assert_eq!(lock(libc::SYS_flock as u32), Some(Withheld::Lock));
        assert_eq!(lock(nr::UNCHANGED), None);
        let send = |data: &[u8]| {
            let args = [9, 0, data.len() as u64, 0];
            reason(What::Descriptor, libc::SYS_sendto as u32, &args, 1, data)
        };
        let rules = farfork_sys::network_lock::unlocking("farfork-1");
        assert_eq!(send(&rules), Some(Withheld::Rules));
        assert_eq!(send(b"what a program has sent"), None);
        let set = |level: i32, name: i32| {
            let args = [9, level as u64, name as u64];
            reason(What::Descriptor, libc::SYS_setsockopt as u32, &args, 3, &[])
        };
        let device = set(libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
        assert_eq!(device, Some(Withheld::Interface));
        assert_eq!(set(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF), Some(Withheld::Interface));
        assert_eq!(set(libc::IPPROTO_IP, libc::IP_TTL), None);
    }
}
