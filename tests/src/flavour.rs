//! The ways to treat a program between its `READY` and its `PASS`.

/// One way to treat a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// No checkpoint at all: the program has to pass by itself.
    Plain,
    /// The program turns its own memory into a file mapping: it must not pass.
    Naive,
    /// Two clones while the parent lives; they and the parent pass, one after the other.
    CloneTwice,
    /// A clone that waits where its parent does is compared with it in all that the kernel shows.
    Audited,
    /// The parent is killed by the checkpoint; the clone takes its pids here.
    KillRestoreSamePid,
    /// The clone runs on a node that shares only the pool with the parent's.
    CloneOnOtherNode,
    /// A clone under each of the tiering policies that are not the default, by which pages are
    /// supplied one by one.
    Tiers,
    /// A profiling clone, and a clone of it.
    Profiling,
    /// The parent is pid 1 of a PID namespace, and so are clones under every policy, each of one of its
    /// own.
    PidOne,
    /// The parent is pid 1 of a PID namespace, and clones of it run in both kinds of ghost.
    PidOneInGhosts,
    /// Clones under every policy run in empty ghosts, each with a network of its own.
    InEmptyGhost,
    /// The clone in an empty ghost is checkpointed too, and its clone runs in another.
    FromGhost,
    /// Clones wait in ghosts before their last steps, under every policy, until they are woken. Trees
    /// are refused.
    InAttachedGhost,
    /// A chain of clones of clones, each in another place and by another policy than the one before.
    Chain,
    /// The parent is killed by the checkpoint; clones take its pids here, one after the other, under each
    /// of the policies that are not the default.
    InParentsPlace,
    /// The clone is checkpointed too, under the same name: the parent's image goes while a clone
    /// of it lives. Then a clone of the clone passes, the clone, and the parent.
    CloneOfClone,
    /// The checkpoint is refused in words, leaves nothing behind, and the program goes on.
    Refused,
    /// No clone starts beside the parent, which goes on; in every place and by every policy one does when
    /// the parent has ended.
    Excluded,
    /// The clone needs a descriptor from its caller, some only as long as the parent lives: refused
    /// without, passing with it, in every place and by every policy.
    Inherited,
    /// The clone goes on with its parent's connections, by every policy, in its parent's place alone: it
    /// is refused in others.
    HandedOver,
}

impl Flavour {
    /// The flavours of a program that can be cloned.
    pub const CLONING: [Flavour; 11] = [
        Flavour::CloneTwice,
        Flavour::KillRestoreSamePid,
        Flavour::CloneOnOtherNode,
        Flavour::InEmptyGhost,
        Flavour::FromGhost,
        Flavour::InAttachedGhost,
        Flavour::CloneOfClone,
        Flavour::Tiers,
        Flavour::Profiling,
        Flavour::Chain,
        Flavour::InParentsPlace,
    ];

    /// The first part of a test's name.
    pub const fn name(self) -> &'static str {
        match self {
            Flavour::Plain => "plain",
            Flavour::Naive => "naive",
            Flavour::CloneTwice => "clone_twice",
            Flavour::Audited => "audited",
            Flavour::KillRestoreSamePid => "kill_restore_same_pid",
            Flavour::CloneOnOtherNode => "clone_on_other_node",
            Flavour::Tiers => "tiers",
            Flavour::Profiling => "profiling",
            Flavour::PidOne => "pid_one",
            Flavour::PidOneInGhosts => "pid_one_in_ghosts",
            Flavour::InEmptyGhost => "in_empty_ghost",
            Flavour::FromGhost => "from_ghost",
            Flavour::InAttachedGhost => "in_attached_ghost",
            Flavour::Chain => "chain",
            Flavour::InParentsPlace => "in_parents_place",
            Flavour::CloneOfClone => "clone_of_clone",
            Flavour::Refused => "refused",
            Flavour::Excluded => "excluded",
            Flavour::Inherited => "inherited",
            Flavour::HandedOver => "handed_over",
        }
    }

    /// Whether a clone is checkpointed in it.
    pub fn clones_again(self) -> bool {
        matches!(self, Flavour::CloneOfClone | Flavour::FromGhost | Flavour::Chain)
    }

    /// Whether the short run has it for some programs only: the flavours that clone, as opposed to what a
    /// program has for itself.
    pub fn rotates(self) -> bool {
        Flavour::CLONING.contains(&self) || self.is_pid_one()
    }

    /// Whether its parent is pid 1 of a namespace.
    pub fn is_pid_one(self) -> bool {
        matches!(self, Flavour::PidOne | Flavour::PidOneInGhosts)
    }

    /// Whether it needs containers.
    pub fn is_in_ghost(self) -> bool {
        use Flavour::{Chain, Excluded, FromGhost, HandedOver, InAttachedGhost, InEmptyGhost};
        matches!(self, InEmptyGhost | FromGhost | InAttachedGhost | Flavour::PidOneInGhosts)
            || matches!(self, Chain | Excluded | Flavour::Inherited | HandedOver)
    }
}
