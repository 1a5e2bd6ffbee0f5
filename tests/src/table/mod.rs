//! Programs × flavours × expectations, in one place.

mod descriptors;
mod families;
mod memory;
mod refusals;
mod runtimes;
mod sockets;
mod state;

use crate::Program;

/// Every program of the suite.
pub fn all() -> impl Iterator<Item = &'static Program> {
    [
        memory::PROGRAMS,
        state::PROGRAMS,
        descriptors::PROGRAMS,
        sockets::PROGRAMS,
        refusals::PROGRAMS,
        runtimes::PROGRAMS,
        families::PROGRAMS,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::all;
    use crate::compile::programs_dir;
    use crate::program::Source;
    use crate::{Flavour, Program};
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = all().map(|program| program.name).collect();
        assert_eq!(names.len(), all().count());
    }

    #[test]
    fn the_short_run_has_every_flavour_and_each_program_in_two() {
        for rotation in 0..12 {
            let mut missing: Vec<Flavour> = all().flat_map(Program::flavours).collect();
            for program in all() {
                let flavours = program.flavours();
                let runs = |flavour: &Flavour| program.is_in_short_run(*flavour, rotation);
                missing.retain(|flavour| !(flavours.contains(flavour) && runs(flavour)));
                let rotating = flavours.iter().filter(|flavour| flavour.rotates());
                let (count, chosen) =
                    (rotating.clone().count(), rotating.filter(|it| runs(it)).count());
                assert!(chosen >= count.min(2), "{} {rotation}: {chosen}", program.name);
            }
            assert_eq!(missing, [], "rotation {rotation}");
        }
    }

    #[test]
    fn rotations_reach_every_flavour_of_a_program() {
        for program in all() {
            let runs = |flavour| (0..14).any(|rotation| program.is_in_short_run(flavour, rotation));
            assert!(program.flavours().into_iter().all(runs), "{}", program.name);
        }
    }

    /// Programs that take more than one byte to pass, and tests that know which.
    const DRIVEN: [&str; 8] = [
        "far_pages.c",
        "neighbours.c",
        "seed_hops.c",
        "seed_memory.c",
        "seed_plain.c",
        "touch.c",
        "uffd_own.c",
        "vm_guest.c",
    ];

    #[test]
    fn every_c_file_is_in_the_table() {
        let listed: BTreeSet<_> = all()
            .filter_map(|program| match program.source {
                Source::C(name) | Source::Musl(name) | Source::C32(name) => {
                    Some(format!("{name}.c"))
                }
                _ => None,
            })
            .chain(DRIVEN.map(str::to_owned))
            .collect();
        let there: BTreeSet<_> = std::fs::read_dir(programs_dir())
            .expect("programs/ is readable")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .filter(|name| name.ends_with(".c"))
            .collect();
        assert_eq!(listed, there);
    }
}
