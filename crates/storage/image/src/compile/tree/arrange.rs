//! The order of forks by which every process gets its parent, its session and its group.
//!
//! ```text
//!  session    inherited at the fork; a process that leads one forks those children that are in
//!             the session it came from before `setsid`, the others after it
//!  orphan     in a session that its parent never was in: forked by way of a process in that
//!             session which ends at once, so that the nearest adopter above gets it, as it did
//!             in the parents' lives
//!  dead       leaders of sessions and groups that live on without them are forked, lead, and end
//! ```
//! All processes are forked before one of them changes its group. So a process starts in the group of
//! its session's leader, and those of the outer session start in the outer group.

use std::collections::BTreeSet;

use crate::model::Member;

/// Ids below this one are those of daemons that start with a system.
const FIRST_ID: u32 = 300;

/// A process and what it does before all else. Numbers of processes are places in the list of all
/// births, of which the members are the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Birth {
    /// Its id.
    pub pid: u32,
    /// Signal for its parent at its end, 0 for none.
    pub exit_signal: u32,
    /// Whether its id does not matter.
    pub is_any_pid: bool,
    /// In order.
    pub steps: Vec<Step>,
}

/// A step of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Becomes the one that gets orphans from below.
    Adopt,
    /// Forks a process.
    Fork(usize),
    /// Leads a session of its own.
    LeadSession,
    /// Leads a group of its own.
    LeadGroup,
    /// Goes over to the group with this id.
    Join(u32),
    /// Waits until a child has ended, and lets it be.
    Await(usize),
    /// Waits until a child has ended, and reaps it.
    Reap(usize),
    /// Waits until all members are here.
    Meet,
    /// Ends with this wait status.
    End(i32),
}

/// A member (by index) that no order of forks can put in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misplaced(pub usize);

/// Session and group that are the restorer's, since the root has them without their leaders.
struct Outer {
    session: u32,
    group: u32,
}

/// What a process forks before and after it leads its session, if it does.
#[derive(Clone, Default)]
struct Forks {
    early: Vec<usize>,
    late: Vec<usize>,
}

struct Arrangement<'m> {
    members: &'m [Member],
    outer: Outer,
    /// Of leaders of sessions: the one that they have to be forked in for their children's sake.
    wanted: Vec<Option<u32>>,
    /// Members that get orphans.
    adopters: BTreeSet<usize>,
    forks: Vec<Forks>,
    is_placed: Vec<bool>,
    /// Births that are not members, from `members.len()` on.
    passing: Vec<Passing>,
}

/// A process that ends on the way.
struct Passing {
    pid: u32,
    is_any_pid: bool,
    /// Leads a session, a group, or nothing.
    lead: Option<Step>,
}

/// Arranges the births of `members`, a parent before its children.
pub fn arrange(members: &[Member]) -> Result<Vec<Birth>, Misplaced> {
    let mut arrangement = Arrangement::new(members);
    arrangement.place_all()?;
    let groups = arrangement.groups()?;
    Ok(arrangement.births(&groups))
}

impl<'m> Arrangement<'m> {
    fn new(members: &'m [Member]) -> Arrangement<'m> {
        let mut arrangement = Arrangement {
            members,
            outer: outer(members),
            wanted: vec![None; members.len()],
            adopters: BTreeSet::new(),
            forks: vec![Forks::default(); members.len()],
            is_placed: vec![false; members.len()],
            passing: Vec::new(),
        };
        for member in (0..members.len()).rev() {
            arrangement.wanted[member] = arrangement.wanted_by(member);
        }
        let orphans = (1..members.len()).filter(|member| arrangement.is_orphan(*member));
        arrangement.adopters = orphans.map(|orphan| parent(&members[orphan])).collect();
        arrangement.is_placed[0] = true;
        arrangement
    }

    fn session(&self, member: usize) -> u32 {
        let session = self.members[member].kinship.session;
        if session == self.outer.session { 0 } else { session }
    }

    fn leads_session(&self, member: usize) -> bool {
        let pid = self.members[member].process.pid;
        pid == self.members[member].kinship.session && pid != 0
    }

    fn wanted_by(&self, leader: usize) -> Option<u32> {
        if leader == 0 {
            return Some(0); // that of the restorer
        }
        if !self.leads_session(leader) {
            return None;
        }
        let children = (leader + 1..self.members.len())
            .filter(|child| parent(&self.members[*child]) == leader);
        children.filter_map(|child| self.needed(child)).find(|w| *w != self.session(leader))
    }

    /// The session that a process has to be forked in.
    fn needed(&self, member: usize) -> Option<u32> {
        if self.leads_session(member) { self.wanted[member] } else { Some(self.session(member)) }
    }

    /// Whether the parent of `member` was never in the session that `member` needs.
    fn is_orphan(&self, member: usize) -> bool {
        let parent = parent(&self.members[member]);
        let was_in = |session| {
            session == self.session(parent)
                || self.leads_session(parent) && self.wanted[parent] == Some(session)
        };
        self.needed(member).is_some_and(|session| !was_in(session))
    }

    fn place_all(&mut self) -> Result<(), Misplaced> {
        loop {
            let mut has_moved = false;
            for member in 1..self.members.len() {
                let is_next =
                    !self.is_placed[member] && self.is_placed[parent(&self.members[member])];
                if is_next && self.place(member) {
                    self.is_placed[member] = true;
                    has_moved = true;
                }
            }
            match self.is_placed.iter().position(|is_placed| !is_placed) {
                None => return Ok(()),
                Some(missing) if !has_moved => return Err(Misplaced(missing)),
                Some(_) => {}
            }
        }
    }

    fn place(&mut self, member: usize) -> bool {
        let parent = parent(&self.members[member]);
        let needed = self.needed(member);
        if self.is_orphan(member) {
            return needed.is_some_and(|session| self.place_orphan(member, parent, session));
        }
        let is_late = needed.is_none_or(|session| session == self.session(parent));
        let forks = &mut self.forks[parent];
        if is_late {
            forks.late.push(member)
        } else {
            forks.early.push(member)
        }
        true
    }

    /// Has an orphan in `session` forked where `adopter` is the next above to get orphans.
    fn place_orphan(&mut self, orphan: usize, adopter: usize, session: u32) -> bool {
        let led_by_dead = self.members.len()
            + self.passing.iter().take_while(|other| other.pid != session).count();
        if led_by_dead < self.forks.len() && self.forks[adopter].late.contains(&led_by_dead) {
            self.forks[led_by_dead].late.push(orphan);
            return true;
        }
        if let Some((forker, is_late)) = self.forker(adopter, session) {
            let passing = self.pass(self.unused_id(), true, None);
            self.forks[passing].late.push(orphan);
            let forks = &mut self.forks[forker];
            if is_late {
                forks.late.push(passing)
            } else {
                forks.early.push(passing)
            }
            return true;
        }
        let is_led =
            (0..self.members.len()).any(|other| self.members[other].process.pid == session);
        if session == 0 || is_led || led_by_dead < self.forks.len() {
            return false;
        }
        let leader = self.pass(session, false, Some(Step::LeadSession));
        self.forks[leader].late.push(orphan);
        self.forks[adopter].late.push(leader);
        true
    }

    /// A process that is or was in `session`, from below which orphans go to `adopter`, and
    /// whether it is there when it leads its own.
    fn forker(&self, adopter: usize, session: u32) -> Option<(usize, bool)> {
        let placed = (0..self.members.len()).filter(|member| self.is_placed[*member]);
        let mut there = placed.filter_map(|member| {
            let is_late = self.session(member) == session;
            let is_early = self.leads_session(member) && self.wanted[member] == Some(session);
            (is_late || is_early).then_some((member, is_late))
        });
        there.find(|(member, _)| self.adopter_above(*member) == Some(adopter))
    }

    /// The process that gets the orphans from below `member`.
    fn adopter_above(&self, member: usize) -> Option<usize> {
        let above = |member: &usize| self.members[*member].kinship.parent.map(|p| p as usize);
        std::iter::successors(Some(member), above).find(|above| self.adopters.contains(above))
    }

    fn pass(&mut self, pid: u32, is_any_pid: bool, lead: Option<Step>) -> usize {
        self.passing.push(Passing { pid, is_any_pid, lead });
        self.forks.push(Forks::default());
        self.forks.len() - 1
    }

    fn unused_id(&self) -> u32 {
        let is_used = |id: u32| {
            self.passing.iter().any(|other| other.pid == id)
                || self.members.iter().any(|member| {
                    let kin = member.kinship;
                    [member.process.pid, kin.session, kin.group].contains(&id)
                        || member.threads.iter().any(|thread| thread.tid == id)
                })
        };
        (FIRST_ID..).find(|id| !is_used(*id)).unwrap_or(FIRST_ID)
    }

    /// Of each member, how it gets into its group; births of dead leaders are added.
    fn groups(&mut self) -> Result<Vec<Vec<Step>>, Misplaced> {
        let mut groups = Vec::new();
        let mut led: BTreeSet<u32> = self.members.iter().map(|member| member.process.pid).collect();
        let members = self.members;
        for (index, member) in members.iter().enumerate() {
            let (pid, session, group) =
                (member.process.pid, self.session(index), self.group(index));
            if !self.shares_session(index, group) {
                return Err(Misplaced(index));
            }
            groups.push(if group == session {
                Vec::new()
            } else if group == pid {
                vec![Step::LeadGroup]
            } else if led.insert(group) {
                let leader = self.pass(group, false, Some(Step::LeadGroup));
                vec![Step::Fork(leader), Step::Await(leader), Step::Join(group), Step::Reap(leader)]
            } else {
                vec![Step::Meet, Step::Join(group)]
            });
        }
        Ok(groups)
    }

    /// The group of a member, 0 for that of the restorer.
    fn group(&self, member: usize) -> u32 {
        let group = self.members[member].kinship.group;
        if group == self.outer.group { 0 } else { group }
    }

    /// Whether all of `group` are in the session of `member`, which a leader of a session leads,
    /// and with them the process that has given the group its id, if it lives.
    fn shares_session(&self, member: usize, group: u32) -> bool {
        let session = self.session(member);
        let leads_group = group == session || !self.leads_session(member);
        let fits = |other: usize| {
            let gave_id = group != 0 && self.members[other].process.pid == group;
            let is_in = self.group(other) == group;
            if is_in { self.session(other) == session } else { !gave_id }
        };
        leads_group && (0..self.members.len()).all(fits)
    }

    fn births(&self, groups: &[Vec<Step>]) -> Vec<Birth> {
        let members = (0..self.members.len()).map(|member| self.member(member, &groups[member]));
        let first = self.members.len();
        let passing = self.passing.iter().enumerate().map(|(index, passing)| {
            let mut steps: Vec<Step> = passing.lead.into_iter().collect();
            steps.extend(self.forks(&self.forks[first + index].late));
            steps.push(Step::End(0));
            let Passing { pid, is_any_pid, .. } = *passing;
            Birth { pid, exit_signal: 0, is_any_pid, steps }
        });
        members.chain(passing).collect()
    }

    fn member(&self, index: usize, group: &[Step]) -> Birth {
        let member = &self.members[index];
        let mut steps = Vec::new();
        if self.adopters.contains(&index) {
            steps.push(Step::Adopt);
        }
        steps.extend(self.forks(&self.forks[index].early));
        if self.leads_session(index) {
            steps.push(Step::LeadSession);
        }
        steps.extend(self.forks(&self.forks[index].late));
        steps.extend(group);
        if !group.contains(&Step::Meet) {
            steps.push(Step::Meet);
        }
        steps.extend(member.kinship.ended.map(Step::End));
        let ended = (index + 1..self.members.len()).filter(|child| {
            let child = &self.members[*child];
            parent(child) == index && child.kinship.ended.is_some()
        });
        steps.extend(ended.map(Step::Await));
        let (pid, exit_signal) = (member.process.pid, member.kinship.exit_signal);
        Birth { pid, exit_signal, is_any_pid: false, steps }
    }

    /// Forks; a process that ends on the way is reaped at once.
    fn forks(&self, children: &[usize]) -> Vec<Step> {
        let steps = |child: &usize| {
            let reap = (*child >= self.members.len()).then_some(Step::Reap(*child));
            [Some(Step::Fork(*child)), reap].into_iter().flatten()
        };
        children.iter().flat_map(steps).collect()
    }
}

/// The index of a member's parent; only the root has none.
fn parent(member: &Member) -> usize {
    member.kinship.parent.map_or(usize::MAX, |parent| parent as usize)
}

/// The root keeps the session and group that it was started in if no process leads them, as a single
/// process does.
fn outer(members: &[Member]) -> Outer {
    let root = &members[0].kinship;
    let is_led = |id: u32| members.iter().any(|member| member.process.pid == id);
    let is_known = |id: fn(&Member) -> u32| members.iter().any(|member| id(member) == 0);
    let keep = |id: u32, is_known: bool| if is_led(id) || is_known { 0 } else { id };
    Outer {
        session: keep(root.session, is_known(|member| member.kinship.session)),
        group: keep(root.group, is_known(|member| member.kinship.group)),
    }
}
