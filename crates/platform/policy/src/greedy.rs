//! Which things go to make room: those that are worth least for their size (greedy-dual).

/// Something that takes room and saves time.
pub(crate) struct Candidate<'a> {
    pub(crate) name: &'a str,
    pub(crate) bytes: u64,
    /// How often it is used in an hour.
    pub(crate) uses_per_hour: u64,
    /// What it would take longer without it, each time, in microseconds.
    pub(crate) saves_us: u64,
}

impl Candidate<'_> {
    /// Microseconds that it saves in an hour for each MiB, so that no two need fractions.
    fn worth(&self) -> u128 {
        let saved = u128::from(self.uses_per_hour) * u128::from(self.saves_us);
        (saved << 20) / u128::from(self.bytes.max(1))
    }
}

/// The names of those worth least, no more than take `wanted` bytes, and the bytes that they take:
/// less than wanted if that is all there is.
pub(crate) fn least_worth<'a>(
    candidates: impl Iterator<Item = Candidate<'a>>,
    wanted: u64,
) -> (Vec<String>, u64) {
    let mut sorted: Vec<Candidate<'_>> = candidates.filter(|one| one.bytes > 0).collect();
    sorted.sort_by_key(|one| (one.worth(), one.name));
    let mut freed = 0u64;
    let mut names = Vec::new();
    for one in sorted {
        if freed >= wanted {
            break;
        }
        freed = freed.saturating_add(one.bytes);
        names.push(one.name.to_owned());
    }
    (names, freed)
}
