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
    "a process behind its filters cannot report, and others of the tree are not done";

impl Outline {
    /// The outline of `plan`.
    pub fn of(plan: &[u8]) -> Outline {
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
