//! The compared systems: the same platform with different policies and start modes.

use farfork_policy::checkpoint::AfterCalls;
use farfork_policy::ghosts::ByBursts;
use farfork_policy::keep_alive::ByPressure;
use farfork_policy::settings::{Checkpoint, KeepAlive, Settings, Tiering};
use farfork_policy::tiering::Always;
use farfork_types::Tiering as Tier;

/// A system that runs functions.
pub struct System {
    /// Name in reports.
    pub name: &'static str,
    /// Settings of its policies.
    pub policies: Settings,
    /// How its instances start.
    pub start_mode: StartMode,
}

/// How instances start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMode {
    /// As clones of their function's image, which exists before the first call.
    Image,
    /// As clones of the runtime's base image, which load the code.
    BaseImage,
    /// As interpreters, executed in a new container, which load the code.
    Program,
}

impl StartMode {
    /// All modes.
    pub const ALL: [StartMode; 3] = [StartMode::Image, StartMode::BaseImage, StartMode::Program];
}

impl System {
    /// Whether functions have images.
    pub fn has_images(&self) -> bool {
        self.start_mode == StartMode::Image
    }
}

/// farfork's default policies.
pub const FARFORK: &str = "farfork";
/// All pages are copied before a clone runs.
pub const FULL_COPY: &str = "full-copy";
/// Pages are copied when a clone touches them.
pub const MIGRATE_ON_ACCESS: &str = "migrate-on-access";
/// The names of all systems.
pub const NAMES: [&str; 7] = [
    "container-cold-start",
    "cold-start",
    "keep-warm",
    FULL_COPY,
    MIGRATE_ON_ACCESS,
    "migrate-on-write",
    FARFORK,
];

/// All systems.
pub fn all() -> [System; 7] {
    let never = Checkpoint::AfterCalls(AfterCalls { calls: u64::MAX });
    let at_once = ByPressure { long_ms: 0, short_ms: 0, ..ByPressure::default() };
    // No ghosts wait, so that containers are created when calls arrive.
    let none_wait = ByBursts { spare: 0, most: 0, ..ByBursts::default() };
    let [in_container, cold_start, keep_warm, full_copy, on_access, on_write, farfork] = NAMES;
    let without_images = |name, keep_alive| System {
        name,
        policies: Settings { checkpoint: never, keep_alive, ..Settings::default() },
        start_mode: StartMode::BaseImage,
    };
    let always = |name, tiering| System {
        name,
        policies: Settings { tiering: Tiering::Always(Always { tiering }), ..Settings::default() },
        start_mode: StartMode::Image,
    };
    let ends_at_once = without_images(cold_start, KeepAlive::ByPressure(at_once));
    [
        System {
            name: in_container,
            policies: Settings { ghosts: none_wait, ..ends_at_once.policies },
            start_mode: StartMode::Program,
        },
        ends_at_once,
        without_images(keep_warm, KeepAlive::ByPressure(ByPressure::default())),
        always(full_copy, Tier::Copy),
        always(on_access, Tier::Moa),
        always(on_write, Tier::Mow),
        System { name: farfork, policies: Settings::default(), start_mode: StartMode::Image },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_has_different_policies_that_survive_json() {
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
