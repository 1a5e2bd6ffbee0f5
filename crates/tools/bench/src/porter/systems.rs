//! What is compared: the same platform, with other policies, and with functions that begin otherwise.

use farfork_policy::checkpoint::AfterCalls;
use farfork_policy::ghosts::ByBursts;
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
    /// How instances begin.
    pub beginning: Beginning,
}

/// How instances of functions begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// As clones of their function's image, which is there from the first call on.
    Image,
    /// As clones of the runtime's base image, which load the code.
    BaseImage,
    /// As interpreters that are executed in a container, which load the code.
    Program,
}

impl Beginning {
    /// All of them.
    pub const ALL: [Beginning; 3] = [Beginning::Image, Beginning::BaseImage, Beginning::Program];
}

impl System {
    /// Whether functions have images.
    pub fn has_images(&self) -> bool {
        self.beginning == Beginning::Image
    }
}

/// That of farfork's own policies.
pub const FARFORK: &str = "farfork";
/// That which copies all memory before a clone runs.
pub const FULL_COPY: &str = "full-copy";
/// That which copies what a clone touches.
pub const MIGRATE_ON_ACCESS: &str = "migrate-on-access";
/// Names of all.
pub const NAMES: [&str; 7] = [
    "container-cold-start",
    "cold-start",
    "keep-warm",
    FULL_COPY,
    MIGRATE_ON_ACCESS,
    "migrate-on-write",
    FARFORK,
];

/// All of them.
pub fn all() -> [System; 7] {
    let never = Checkpoint::AfterCalls(AfterCalls { calls: u64::MAX });
    let at_once = ByPressure { long_ms: 0, short_ms: 0, ..ByPressure::default() };
    // So that containers are made when calls come.
    let none_wait = ByBursts { spare: 0, most: 0, ..ByBursts::default() };
    let [in_container, cold_start, keep_warm, full_copy, on_access, on_write, farfork] = NAMES;
    let without_images = |name, keep_alive| System {
        name,
        policies: Settings { checkpoint: never, keep_alive, ..Settings::default() },
        beginning: Beginning::BaseImage,
    };
    let always = |name, tiering| System {
        name,
        policies: Settings { tiering: Tiering::Always(Always { tiering }), ..Settings::default() },
        beginning: Beginning::Image,
    };
    let ends_at_once = without_images(cold_start, KeepAlive::ByPressure(at_once));
    [
        System {
            name: in_container,
            policies: Settings { ghosts: none_wait, ..ends_at_once.policies },
            beginning: Beginning::Program,
        },
        ends_at_once,
        without_images(keep_warm, KeepAlive::ByPressure(ByPressure::default())),
        always(full_copy, Tier::Copy),
        always(on_access, Tier::Moa),
        always(on_write, Tier::Mow),
        System { name: farfork, policies: Settings::default(), beginning: Beginning::Image },
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
