//! What a fork would share with its parent is copied or refused; a process in a frozen cgroup is refused, and its
//! seed outlives a freeze.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use farfork_sys::freezer::Freezer;
use farfork_tests::nodes::{AWAY, HOME, demand};
use farfork_tests::program::Program;
use farfork_tests::{Outcome, Trouble, testbed};

use crate::bed::Bed;
use crate::{children, memory, order};

/// Clones have shared memory, files in memory and System V segments of their own, with what was in them; the
/// process goes on with its own.
pub fn copied() -> Outcome {
    let bed = Bed::set("copied")?;
    for name in ["shared_anon", "fd_memfd", "memfd_maps", "sysv_shm"] {
        let mut parent = bed.parent(&Program::c(name))?;
        let seed = bed.prepare(&parent, &[])?;
        let is_copied = seed.report["copied_bytes"].as_u64() > Some(0);
        demand(is_copied, "copied bytes", &(name, &seed.report))?;
        for _ in 0..2 {
            bed.resume(&seed, &["--no-prefetch"])?.must_pass()?;
        }
        parent.must_pass()?;
        bed.json(HOME, &["reclaim", "--json", "--wait", "0", &seed.handle])?;
    }
    Ok(())
}

/// What other processes have, too, and trees are refused, and nothing is left of the attempt.
pub fn refused() -> Outcome {
    let bed = Bed::set("not-copied")?;
    let all = [
        ("refuse_shared_elsewhere", "has the same memory"),
        ("refuse_sysv_elsewhere", "has the same memory"),
        ("refuse_child", "child"),
    ];
    for (name, reason) in all {
        let mut parent = bed.parent(&Program::c(name))?;
        let before = children(&parent);
        let pid = parent.pid().to_string();
        let said = bed.refused(HOME, &["prepare", "--pid", &pid], 1)?;
        demand(said.contains(reason), reason, &said)?;
        demand(children(&parent) == before, "no copy", &children(&parent))?;
        parent.must_pass()?;
    }
    Ok(())
}

/// A cgroup of this test's own that can be frozen.
struct Group(PathBuf);

impl Group {
    fn new() -> Outcome<Group> {
        let mounts = fs::read_to_string("/proc/mounts").map_err(during("looking for cgroups"))?;
        let at = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let has_freezer = || fields[3].split(',').any(|option| option == "freezer");
            let is_it = fields[2] == "cgroup2" || fields[2] == "cgroup" && has_freezer();
            is_it.then(|| fields[1].to_owned())
        });
        let none = || Trouble::Skipped("no hierarchy of cgroups can freeze".to_owned());
        let at = PathBuf::from(at.ok_or_else(none)?).join(format!("seeds-{}", std::process::id()));
        fs::create_dir_all(&at).map_err(during("making a cgroup"))?;
        Ok(Group(at))
    }

    fn take(&self, pid: u32) -> Outcome {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).map_err(during("entering a cgroup"))
    }

    fn freezer(&self) -> Outcome<Freezer> {
        let freezer = Freezer::among(std::slice::from_ref(&self.0));
        freezer.ok_or_else(|| Trouble::Failed("the group does not freeze".to_owned()))
    }

    /// Returns when all in it stand still.
    fn freeze(&self) -> Outcome {
        self.freezer()?.freeze().map_err(during("freezing"))?;
        let has = |file: &str, word: &str| {
            let text = fs::read_to_string(self.0.join(file)).unwrap_or_default();
            text.lines().any(|line| line == word)
        };
        let is_frozen = || Ok(has("freezer.state", "FROZEN") || has("cgroup.events", "frozen 1"));
        testbed::eventually("the group is frozen", is_frozen)
    }

    fn thaw(&self) -> Outcome {
        self.freezer()?.thaw().map_err(during("thawing"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.thaw();
        for _ in 0..1000 {
            // Those that were in it may not have ended yet.
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn during(doing: &'static str) -> impl Fn(std::io::Error) -> Trouble {
    move |error| Trouble::during(doing, error)
}

/// A frozen process is refused by the name of its cgroup. A seed that was made before has its pages also while
/// its process is frozen, and ends then, too; its copy is reaped after the thaw.
pub fn frozen() -> Outcome {
    let bed = Bed::set("frozen")?;
    // Dropped after the processes in it.
    let group = Group::new()?;
    let mut parent = bed.parent(&memory())?;
    group.take(parent.pid())?;
    group.freeze()?;
    let pid = parent.pid().to_string();
    let said = bed.refused(HOME, &["prepare", "--pid", &pid], 1)?;
    let name = group.0.display().to_string();
    demand(said.contains(&name) && said.contains("is frozen"), &name, &said)?;
    demand(children(&parent).is_empty(), "no copy", &children(&parent))?;
    group.thaw()?;
    order(&mut parent, b"v")?;
    let seed = bed.prepare(&parent, &[])?;
    group.freeze()?;
    bed.resume(&seed, &["--no-prefetch"])?.must_pass()?;
    bed.json(HOME, &["reclaim", "--json", "--wait", "0", &seed.handle])?;
    let said = bed.refused(AWAY, &["resume", &seed.handle], 1)?;
    demand(said.contains("10.78.0.1"), "the keeper's address", &said)?;
    group.thaw()?;
    order(&mut parent, b"c")?;
    let next = bed.prepare(&parent, &[])?;
    let mut clone = bed.resume(&next, &["--no-prefetch"])?;
    clone.must_pass()?;
    demand(clone.after("GENERATION") == ["11"], "the second generation", &())?;
    bed.json(HOME, &["reclaim", "--json", "--wait", "0", &next.handle])?;
    demand(children(&parent).is_empty(), "no children", &children(&parent))?;
    parent.must_pass()
}
