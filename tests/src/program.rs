//! What the table knows about one program.

use crate::way::{POLICIES, Place, Way};
use crate::{Flavour, Outcome, Trouble};
use std::path::PathBuf;
use std::time::Duration;

/// Where a program comes from; paths are relative to `programs/`.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// One C file, compiled with `cc`.
    C(&'static str),
    /// One C file, linked statically with musl by `musl-gcc`.
    Musl(&'static str),
    /// One C file, compiled for 32 bits.
    C32(&'static str),
    /// A directory with a Go module.
    Go(&'static str),
    /// An interpreter, its options, and the script.
    Script(&'static str, &'static [&'static str], &'static str),
}

/// What a checkpoint of the program leads to.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// Every clone passes.
    Passes,
    /// `checkpoint` refuses; its message holds one of these words.
    Refused(&'static [&'static str]),
    /// A clone cannot live beside the parent: `restore` says why, with this word in it.
    Excludes(&'static str),
    /// A clone goes on with its connections, in its place only: elsewhere `restore` refuses.
    HandsOver,
    /// `restore` refuses without `--inherit-fd N=…`, naming the fd, and passes with it.
    NeedsInherit(u32, &'static str),
    /// The same while the parent lives; when it has ended, `restore` passes without.
    NeedsInheritBeside(u32, &'static str),
}

/// Programs whose breadth is always tested: one's memory, one's threads, one's processes.
const REPRESENTATIVES: [&str; 4] = ["dontneed", "tls", "tree_forks", "fd_locks"];

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The name of its tests.
    pub name: &'static str,
    /// Where it comes from.
    pub source: Source,
    /// What a checkpoint of it leads to.
    pub expect: Expect,
    /// Its `VALUE` lines differ between the parent and all clones.
    pub values_differ: bool,
    /// It does not pass when its anonymous memory turns into a mapping of a file.
    pub caught_naive: bool,
    /// A shared library that is preloaded.
    pub preload: Option<&'static str>,
    /// Environment variables that are set for it.
    pub env: &'static [(&'static str, &'static str)],
    /// It has addresses that only one process of a network namespace can have: each clone starts
    /// on a node in a namespace of its own.
    pub own_network: bool,
    /// It is checkpointed with all that descend from it.
    pub is_tree: bool,
    /// Further options of its checkpoints.
    pub options: &'static [&'static str],
    /// It is also cloned as pid 1 of a PID namespace.
    pub as_pid_one: bool,
    /// It is not cloned in ghosts.
    pub not_in_ghosts: bool,
    /// It is not cloned from its clone.
    pub has_fresh_clones: bool,
    /// Its files are not what they were when it has passed, so that no clone follows another.
    pub uses_up_files: bool,
    /// What its clones say when they can be checkpointed.
    pub settles: Option<&'static str>,
    /// How long it does not change before it has come to rest, where it does more than it says with `READY`.
    pub rest: Option<Duration>,
    /// How long each wait for it may take.
    pub timeout: Duration,
}

impl Program {
    /// A C program whose file has its name.
    pub const fn c(name: &'static str) -> Self {
        Self::of(name, Source::C(name))
    }

    /// A program with a source of another name.
    pub const fn of(name: &'static str, source: Source) -> Self {
        Self {
            name,
            source,
            expect: Expect::Passes,
            values_differ: false,
            caught_naive: false,
            preload: None,
            env: &[],
            own_network: false,
            is_tree: false,
            options: &[],
            as_pid_one: false,
            not_in_ghosts: false,
            has_fresh_clones: false,
            uses_up_files: false,
            settles: None,
            rest: None,
            timeout: Duration::from_secs(180),
        }
    }

    /// Marks a program that the naive restore does not get past.
    pub const fn caught_naive(mut self) -> Self {
        self.caught_naive = true;
        self
    }

    /// Marks a program that a checkpoint refuses, naming one of `words`.
    pub const fn refused(mut self, words: &'static [&'static str]) -> Self {
        self.expect = Expect::Refused(words);
        self
    }

    /// Marks a program of which only one can live; a clone beside it is refused with `word`.
    pub const fn excludes(mut self, word: &'static str) -> Self {
        self.expect = Expect::Excludes(word);
        self
    }

    /// Marks a program whose connections a clone takes over.
    pub const fn hands_over(mut self) -> Self {
        self.expect = Expect::HandsOver;
        self
    }

    /// Marks a program whose `fd` the caller of `restore` has to bring.
    pub const fn needs_inherit(mut self, fd: u32, path: &'static str) -> Self {
        self.expect = Expect::NeedsInherit(fd, path);
        self
    }

    /// Marks a program whose `fd` the caller of `restore` has to bring as long as the parent lives.
    pub const fn needs_inherit_beside(mut self, fd: u32, path: &'static str) -> Self {
        self.expect = Expect::NeedsInheritBeside(fd, path);
        self
    }

    /// Marks a program whose draws differ in every clone.
    pub const fn values_differ(mut self) -> Self {
        self.values_differ = true;
        self
    }

    /// Preloads a library, the test being skipped where it is not installed.
    pub const fn preload(mut self, library: &'static str) -> Self {
        self.preload = Some(library);
        self
    }

    /// Sets environment variables.
    pub const fn env(mut self, env: &'static [(&'static str, &'static str)]) -> Self {
        self.env = env;
        self
    }

    /// Marks a program that is checkpointed with all that descend from it.
    pub const fn tree(mut self) -> Self {
        self.is_tree = true;
        self
    }

    /// Gives options to its checkpoints.
    pub const fn options(mut self, options: &'static [&'static str]) -> Self {
        self.options = options;
        self
    }

    /// Marks a program that is also cloned as pid 1 of a PID namespace.
    pub const fn as_pid_one(mut self) -> Self {
        self.as_pid_one = true;
        self
    }

    /// Marks a program that needs what containers are not given.
    pub const fn not_in_ghosts(mut self) -> Self {
        self.not_in_ghosts = true;
        self
    }

    /// Marks a program whose clones are not ready to be cloned until they have gone on.
    pub const fn no_clone_of_clone(mut self) -> Self {
        self.has_fresh_clones = true;
        self
    }

    /// Marks a program that leaves other files than it found.
    pub const fn uses_up_files(mut self) -> Self {
        self.uses_up_files = true;
        self
    }

    /// Marks a program whose clones can be checkpointed when they have said so.
    pub const fn settles(mut self, word: &'static str) -> Self {
        self.settles = Some(word);
        self
    }

    /// Marks a program whose runtime still works when it waits, and does no more when it has not changed for so long.
    pub const fn rests_after(mut self, seconds: u64) -> Self {
        self.rest = Some(Duration::from_secs(seconds));
        self
    }

    /// Marks a program with addresses of its own.
    pub const fn own_network(mut self) -> Self {
        self.own_network = true;
        self
    }

    /// Gives the program more time than the usual three minutes.
    pub const fn seconds(mut self, seconds: u64) -> Self {
        self.timeout = Duration::from_secs(seconds);
        self
    }

    /// The flavours that this program is crossed with.
    pub fn flavours(&self) -> Vec<Flavour> {
        let mut all = vec![Flavour::Plain];
        if self.caught_naive {
            all.push(Flavour::Naive);
        }
        if self.as_pid_one {
            all.extend([Flavour::PidOne, Flavour::PidOneInGhosts]);
        }
        if matches!(self.expect, Expect::NeedsInherit(..) | Expect::NeedsInheritBeside(..)) {
            all.push(Flavour::Inherited);
        }
        match self.expect {
            Expect::Passes | Expect::NeedsInherit(..) | Expect::NeedsInheritBeside(..) => {
                all.push(Flavour::Audited);
                all.extend(Flavour::CLONING);
            }
            Expect::Refused(_) => all.push(Flavour::Refused),
            Expect::Excludes(_) => all.extend([
                Flavour::Excluded,
                Flavour::KillRestoreSamePid,
                Flavour::InParentsPlace,
            ]),
            Expect::HandsOver => all.push(Flavour::HandedOver),
        }
        all.retain(|flavour| self.has(*flavour));
        all
    }

    /// A clone of a clone differs only in the surroundings of its ghost. It runs for programs that check
    /// these, and for a few others.
    fn has(&self, flavour: Flavour) -> bool {
        let looks = self.as_pid_one || self.own_network || self.is_tree || self.values_differ;
        if self.has_fresh_clones && flavour.clones_again() {
            return false;
        }
        match flavour {
            Flavour::InEmptyGhost | Flavour::InAttachedGhost | Flavour::PidOneInGhosts => {
                !self.not_in_ghosts
            }
            // What comes from the caller differs.
            Flavour::Audited => matches!(self.expect, Expect::Passes),
            Flavour::FromGhost => looks && !self.not_in_ghosts,
            Flavour::InParentsPlace => !self.uses_up_files,
            _ => true,
        }
    }

    /// Whether the short run has this program in this flavour. Of the flavours that clone it there are two,
    /// which differ from program to program and with `rotation`; representatives have all of them.
    pub fn is_in_short_run(&self, flavour: Flavour, rotation: usize) -> bool {
        if !flavour.rotates() || REPRESENTATIVES.contains(&self.name) {
            return true;
        }
        let rotating: Vec<Flavour> =
            self.flavours().into_iter().filter(|it| it.rotates()).collect();
        let first = self.number() + rotation;
        // Half of the list apart: one that clones plainly, one that clones a clone or goes on elsewhere.
        [first, first + rotating.len() / 2]
            .iter()
            .any(|index| rotating[index % rotating.len()] == flavour)
    }

    /// A number that differs from program to program.
    fn number(&self) -> usize {
        self.name.bytes().map(usize::from).sum()
    }

    /// Whether its clones begin like this when there is little time: in each kind of ghost by one policy,
    /// which differs from program to program.
    pub fn stands_for(&self, way: Way) -> bool {
        let first = self.number();
        let place = usize::from(way.place == Place::AttachedGhost);
        REPRESENTATIVES.contains(&self.name)
            || POLICIES[(first + place) % POLICIES.len()] == way.tiering
    }

    /// The path of the preloaded library, if there is one to preload.
    pub fn preload_path(&self) -> Outcome<Option<PathBuf>> {
        let Some(library) = self.preload else { return Ok(None) };
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib"]
            .iter()
            .map(|directory| PathBuf::from(directory).join(library))
            .find(|path| path.exists())
            .map(Some)
            .ok_or_else(|| Trouble::Skipped(format!("{library} is not installed")))
    }
}
