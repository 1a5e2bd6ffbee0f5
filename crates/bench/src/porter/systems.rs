//! What is compared: the same platform, with other policies.

use farfork_policy::checkpoint::AfterCalls;
use farfork_policy::keep_alive::ByPressure;
use farfork_policy::settings::{Checkpoint, KeepAlive, Settings, Tiering};
use farfork_policy::tiering::Always;
use farfork_types::Tiering as Tier;

/// A way to run functions.
pub struct System {
    /// Its name in reports.
    pub name: &'static str,
    /// What its policies are.
    pub policies: Settings,
    /// Whether functions have images at the beginning.
    pub has_images: bool,
}

/// That of farfork's own policies.
pub const FARFORK: &str = "farfork";
/// That which copies all memory before a clone runs.
pub const FULL_COPY: &str = "full-copy";
/// That which copies what a clone touches.
pub const MIGRATE_ON_ACCESS: &str = "migrate-on-access";
/// Names of all.
pub const NAMES: [&str; 6] =
    ["cold-start", "keep-warm", FULL_COPY, MIGRATE_ON_ACCESS, "migrate-on-write", FARFORK];

/// All of them.
pub fn all() -> [System; 6] {
    let never = Checkpoint::AfterCalls(AfterCalls { calls: u64::MAX });
    let at_once = ByPressure { long_ms: 0, short_ms: 0, ..ByPressure::default() };
    let [cold_start, keep_warm, full_copy, on_access, on_write, farfork] = NAMES;
    let without_images = |name, keep_alive| System {
        name,
        policies: Settings { checkpoint: never, keep_alive, ..Settings::default() },
        has_images: false,
    };
    let always = |name, tiering| System {
        name,
        policies: Settings { tiering: Tiering::Always(Always { tiering }), ..Settings::default() },
        has_images: true,
    };
    [
        without_images(cold_start, KeepAlive::ByPressure(at_once)),
        without_images(keep_warm, KeepAlive::ByPressure(ByPressure::default())),
        always(full_copy, Tier::Copy),
        always(on_access, Tier::Moa),
        always(on_write, Tier::Mow),
        System { name: farfork, policies: Settings::default(), has_images: true },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_has_policies_of_its_own_that_a_file_can_hold() {
        let texts: Vec<String> =
            all().iter().map(|system| serde_json::to_string(&system.policies).unwrap()).collect();
        for (index, text) in texts.iter().enumerate() {
            let read: Settings = serde_json::from_str(text).unwrap();
            assert_eq!(read, all()[index].policies);
            assert!(!texts[..index].contains(text), "{text}");
        }
        assert_eq!(all().map(|system| system.name), NAMES);
    }
}
