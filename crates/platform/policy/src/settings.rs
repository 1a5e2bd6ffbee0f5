//! The choice of policies, and their parameters.

use serde::{Deserialize, Serialize};

use crate::adaptive::Adaptive;
use crate::admission::{AdmissionFacts, LeastWorthFirst};
use crate::checkpoint::{AfterCalls, CheckpointFacts, WhenSettled};
use crate::ghosts::{AttachedFacts, ByBursts, EmptyFacts};
use crate::growth::{AllAtOnce, Demand, GrowthFacts, OneByOne};
use crate::keep_alive::{ByGaps, ByPressure, IdleFacts};
use crate::placement::{NearestGhost, PlacementFacts};
use crate::reclaim::{BetweenMarks, ReclaimFacts};
use crate::relief::ReliefFacts;
use crate::share::{Dynamic, Fixed, ShareFacts};
use crate::tiering::{Always, ByObjective, TieringFacts};
use crate::{Facts, Policy};

/// A choice of policies, as written in files and journals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// In which tier memory lives.
    pub tiering: Tiering,
    /// When a function is checkpointed.
    pub checkpoint: Checkpoint,
    /// How long idle instances stay.
    pub keep_alive: KeepAlive,
    /// When idle instances are frozen.
    pub freeze: Freeze,
    /// How many ghosts wait.
    pub ghosts: ByBursts,
    /// Where instances start.
    pub placement: NearestGhost,
    /// What is evicted for them, and for busy instances.
    pub admission: LeastWorthFirst,
    /// How much memory stays free for busy instances, and which of them pause.
    pub growth: Growth,
    /// Which images are removed.
    pub reclaim: BetweenMarks,
    /// How much memory requests may take in the gateway.
    pub requests: Requests,
    /// How much of the disk a namespace may take.
    pub disk: Disk,
    /// How many processes functions may have.
    pub processes: Processes,
    /// How much of an instance's memory is near. Without it the question is not asked, and instances have
    /// the memory that their kind of start gives them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
}

/// The policy of shares of near memory. Simulations ask it; a live platform has no shares yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
pub enum Share {
    /// See [`Fixed`].
    Fixed(Fixed),
    /// See [`Dynamic`].
    Dynamic(Dynamic),
    /// See [`Adaptive`].
    Adaptive(Adaptive),
}

/// Most processes and threads of all functions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Processes {
    /// Thousandths of those that the machine can have. Beyond, functions cannot start others, and no
    /// instance starts.
    pub all_permille: u64,
}

impl Default for Processes {
    fn default() -> Processes {
        Processes { all_permille: 500 }
    }
}

/// Most bytes of a namespace in the platform's state directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Disk {
    /// Of its actions with their code. An action beyond is refused.
    pub namespace_code_bytes: u64,
    /// Of the unpacked files of its functions. A function beyond cannot start.
    pub namespace_unpacked_bytes: u64,
    /// Of its activations with their logs. Beyond, the oldest are deleted.
    pub namespace_record_bytes: u64,
}

impl Default for Disk {
    fn default() -> Disk {
        Disk {
            namespace_code_bytes: 1 << 30,
            namespace_unpacked_bytes: 4 << 30,
            namespace_record_bytes: 1 << 30,
        }
    }
}

/// Most memory in the gateway of bodies that arrive, and of arguments of calls that wait or run. A
/// request beyond is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Requests {
    /// Bytes for the requests of one namespace.
    pub namespace_bytes: u64,
    /// Bytes for the requests of all namespaces.
    pub all_bytes: u64,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests { namespace_bytes: 128 << 20, all_bytes: 512 << 20 }
    }
}

/// The policy of tiering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
pub enum Tiering {
    /// See [`Always`].
    Always(Always),
    /// See [`ByObjective`].
    ByObjective(ByObjective),
}

impl Default for Tiering {
    fn default() -> Tiering {
        Tiering::ByObjective(ByObjective::default())
    }
}

/// The policy of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
pub enum Checkpoint {
    /// See [`AfterCalls`].
    AfterCalls(AfterCalls),
    /// See [`WhenSettled`].
    WhenSettled(WhenSettled),
}

impl Default for Checkpoint {
    fn default() -> Checkpoint {
        Checkpoint::AfterCalls(AfterCalls::default())
    }
}

/// The policy of idle instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
pub enum KeepAlive {
    /// See [`ByPressure`].
    ByPressure(ByPressure),
    /// See [`ByGaps`].
    ByGaps(ByGaps),
}

impl Default for KeepAlive {
    fn default() -> KeepAlive {
        KeepAlive::ByGaps(ByGaps::default())
    }
}

/// When idle instances are frozen until their next call, so that what their functions left running
/// takes no processor between calls. The next call waits half a millisecond for the thaw, after a
/// gap of seconds. So one constant is enough, and there is no policy to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Freeze {
    /// Milliseconds without a call.
    pub after_ms: u64,
}

impl Default for Freeze {
    fn default() -> Freeze {
        Freeze { after_ms: 10_000 }
    }
}

/// The policy of what stays free for busy instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
pub enum Growth {
    /// See [`AllAtOnce`].
    AllAtOnce(AllAtOnce),
    /// See [`OneByOne`].
    OneByOne(OneByOne),
}

impl Default for Growth {
    fn default() -> Growth {
        Growth::AllAtOnce(AllAtOnce::default())
    }
}

impl Growth {
    /// Bytes that must be free for what these instances may still take.
    pub fn least_free(&self, demands: impl Iterator<Item = Demand>) -> u64 {
        match self {
            Growth::AllAtOnce(policy) => policy.least_free(demands),
            Growth::OneByOne(policy) => policy.least_free(demands),
        }
    }

    /// Whether busy instances may take more than is free, so that some may have to pause.
    pub fn overcommits(&self) -> bool {
        matches!(self, Growth::OneByOne(_))
    }
}

/// The chosen policies.
#[derive(Debug)]
pub struct Policies {
    /// In which tier memory lives.
    pub tiering: Box<dyn Policy<TieringFacts>>,
    /// When a function is checkpointed.
    pub checkpoint: Box<dyn Policy<CheckpointFacts>>,
    /// How long idle instances stay.
    pub keep_alive: Box<dyn Policy<IdleFacts>>,
    /// How many empty ghosts wait.
    pub empty_ghosts: Box<dyn Policy<EmptyFacts>>,
    /// How many ghosts with an image wait.
    pub attached_ghosts: Box<dyn Policy<AttachedFacts>>,
    /// Where instances start.
    pub placement: Box<dyn Policy<PlacementFacts>>,
    /// What is evicted for them.
    pub admission: Box<dyn Policy<AdmissionFacts>>,
    /// Which busy instances pause when together they may take more than is free.
    pub growth: Box<dyn Policy<GrowthFacts>>,
    /// Which instances and ghosts end when memory runs out.
    pub relief: Box<dyn Policy<ReliefFacts>>,
    /// Which images are removed.
    pub reclaim: Box<dyn Policy<ReclaimFacts>>,
    /// How much of an instance's memory is near.
    pub share: Box<dyn Policy<ShareFacts>>,
}

impl From<Settings> for Policies {
    fn from(settings: Settings) -> Policies {
        Policies {
            tiering: match settings.tiering {
                Tiering::Always(policy) => Box::new(policy),
                Tiering::ByObjective(policy) => Box::new(policy),
            },
            checkpoint: match settings.checkpoint {
                Checkpoint::AfterCalls(policy) => Box::new(policy),
                Checkpoint::WhenSettled(policy) => Box::new(policy),
            },
            keep_alive: match settings.keep_alive {
                KeepAlive::ByPressure(policy) => Box::new(policy),
                KeepAlive::ByGaps(policy) => Box::new(policy),
            },
            empty_ghosts: Box::new(settings.ghosts),
            attached_ghosts: Box::new(settings.ghosts),
            placement: Box::new(settings.placement),
            admission: Box::new(settings.admission),
            growth: match settings.growth {
                Growth::AllAtOnce(policy) => Box::new(policy),
                Growth::OneByOne(policy) => Box::new(policy),
            },
            relief: Box::new(settings.admission),
            reclaim: Box::new(settings.reclaim),
            share: match settings.share {
                // Asked for functions that declare a tolerance.
                None => Box::new(Adaptive::default()),
                Some(Share::Fixed(policy)) => Box::new(policy),
                Some(Share::Dynamic(policy)) => Box::new(policy),
                Some(Share::Adaptive(policy)) => Box::new(policy),
            },
        }
    }
}

/// Facts of a question that the chosen policies decide.
pub trait Question: Facts {
    /// The policy that decides it.
    fn policy(policies: &Policies) -> &dyn Policy<Self>;
}

macro_rules! questions {
    ($($facts:ident by $policy:ident,)*) => {$(
        impl Question for $facts {
            fn policy(policies: &Policies) -> &dyn Policy<$facts> {
                &*policies.$policy
            }
        }
    )*};
}

questions! {
    TieringFacts by tiering,
    CheckpointFacts by checkpoint,
    IdleFacts by keep_alive,
    EmptyFacts by empty_ghosts,
    AttachedFacts by attached_ghosts,
    PlacementFacts by placement,
    AdmissionFacts by admission,
    GrowthFacts by growth,
    ReliefFacts by relief,
    ReclaimFacts by reclaim,
    ShareFacts by share,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every setting with its default.
    fn named(settings: &serde_json::Value) -> Vec<String> {
        let named_in = |(key, value): (&String, &serde_json::Value)| match value {
            serde_json::Value::Object(_) => [vec![format!("`{key}`")], named(value)].concat(),
            serde_json::Value::String(name) => vec![format!("`{name}`")],
            figure => vec![format!("`{key}` ({figure})")],
        };
        settings.as_object().unwrap().iter().flat_map(named_in).collect()
    }

    #[test]
    fn all_settings_are_documented() {
        let documents = include_str!("../../../../docs/reference/settings.md");
        let others = Settings {
            tiering: Tiering::Always(Always::default()),
            checkpoint: Checkpoint::WhenSettled(WhenSettled::default()),
            keep_alive: KeepAlive::ByPressure(ByPressure::default()),
            growth: Growth::OneByOne(OneByOne::default()),
            share: Some(Share::Fixed(Fixed::default())),
            ..Settings::default()
        };
        let with = |share| Settings { share: Some(share), ..Settings::default() };
        let dynamic = with(Share::Dynamic(Dynamic::default()));
        let adaptive = with(Share::Adaptive(Adaptive::default()));
        for settings in [Settings::default(), others, dynamic, adaptive] {
            for setting in named(&serde_json::to_value(settings).unwrap()) {
                assert!(
                    documents.contains(&setting),
                    "{setting} is not in docs/reference/settings.md"
                );
            }
        }
    }

    #[test]
    fn a_file_names_only_what_differs() {
        assert_eq!(serde_json::from_str::<Settings>("{}").unwrap(), Settings::default());
        let text = r#"{"checkpoint": {"policy": "when-settled", "window": 8},
                       "tiering": {"policy": "always", "tiering": "moa"}}"#;
        let settings: Settings = serde_json::from_str(text).unwrap();
        let expected = WhenSettled { window: 8, ..WhenSettled::default() };
        assert_eq!(settings.checkpoint, Checkpoint::WhenSettled(expected));
        assert_eq!(
            settings.tiering,
            Tiering::Always(Always { tiering: farfork_types::Tiering::Moa })
        );
        assert_eq!((settings.ghosts, settings.share), (ByBursts::default(), None));
        let text = r#"{"share": {"policy": "dynamic", "tolerance_permille": 10}}"#;
        let share = Share::Dynamic(Dynamic { tolerance_permille: 10 });
        assert_eq!(serde_json::from_str::<Settings>(text).unwrap().share, Some(share));
        let default = serde_json::to_string(&Settings::default()).unwrap();
        assert!(
            !default.contains("share"),
            "journals of platforms without shares stay as they were"
        );
        for wrong in [
            r#"{"tiering": {"policy": "none"}}"#,
            r#"{"tierings": {}}"#,
            r#"{"reclaim": {"high": 900}}"#,
            r#"{"checkpoint": {"policy": "after-calls", "call": 3}}"#,
            r#"{"share": {"policy": "fixed", "local_permille": 1001}}"#,
            r#"{"share": 800}"#,
        ] {
            assert!(serde_json::from_str::<Settings>(wrong).is_err(), "{wrong}");
        }
    }
}
