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
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = all().map(|program| program.name).collect();
        assert_eq!(names.len(), all().count());
    }

    /// Programs that take more than one byte to pass, and tests that know which.
    const DRIVEN: [&str; 2] = ["touch.c", "uffd_own.c"];

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
