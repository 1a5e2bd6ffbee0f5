//! Eviction order: what is worth least for its size goes first (greedy-dual).

/// Something that takes memory and saves time.
pub(crate) struct Candidate<'a, N> {
    pub(crate) name: &'a N,
    pub(crate) bytes: u64,
    /// Uses per hour.
    pub(crate) uses_per_hour: u64,
    /// Microseconds that it saves at each use.
    pub(crate) saves_us: u64,
}

impl<N> Candidate<'_, N> {
    /// Microseconds saved per hour and MiB. An integer, so that equal facts compare equal
    /// everywhere.
    fn worth(&self) -> u128 {
        let saved = u128::from(self.uses_per_hour) * u128::from(self.saves_us);
        (saved << 20) / u128::from(self.bytes.max(1))
    }
}

/// The names of the candidates worth least whose bytes add up to `wanted`, and those bytes: fewer
/// than wanted if all candidates together take less.
pub(crate) fn least_worth<'a, N: Clone + Ord + 'a>(
    candidates: impl Iterator<Item = Candidate<'a, N>>,
    wanted: u64,
) -> (Vec<N>, u64) {
    let mut sorted: Vec<Candidate<'_, N>> = candidates.filter(|one| one.bytes > 0).collect();
    sorted.sort_by_key(|one| (one.worth(), one.name));
    let mut freed = 0u64;
    let mut names = Vec::new();
    for one in sorted {
        if freed >= wanted {
            break;
        }
        freed = freed.saturating_add(one.bytes);
        names.push(one.name.clone());
    }
    (names, freed)
}
