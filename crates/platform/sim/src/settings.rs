//! What is simulated, and whether it can be.

use std::str::FromStr;

use crate::error::SimError;
use crate::profile::Behaviour;
use crate::trace::Trace;

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of nodes.
    pub nodes: u32,
    /// Memory budget of each.
    pub node_bytes: u64,
    /// Size of the pool.
    pub pool_bytes: u64,
    /// Settings of the platform's policies.
    pub policies: farfork_policy::Settings,
    /// What decides.
    pub scheduling: Scheduling,
    /// Processors of each node, which its calls and starts share. Without them, they do not slow each other down, unless
    /// profiles have been measured on so many.
    pub processors: Option<u32>,
    /// Bytes that all nodes move from and to the pool in a second, if that is limited.
    pub pool_bandwidth: Option<u64>,
    /// The same of far memory.
    pub far_bandwidth: Option<u64>,
    /// Size of far memory, if that is limited: beyond it, instances have all memory near.
    pub far_bytes: Option<u64>,
    /// Whether ghosts wait, as on real nodes: empty containers, and some with images. Without them each start finds an
    /// empty one.
    pub ghosts: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            nodes: 2,
            node_bytes: 4 << 30,
            pool_bytes: 4 << 30,
            policies: farfork_policy::Settings::default(),
            scheduling: Scheduling::default(),
            processors: None,
            pool_bandwidth: None,
            far_bandwidth: None,
            far_bytes: None,
            ghosts: false,
        }
    }
}

/// What decides when instances start and end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// The platform's own scheduler and policies.
    #[default]
    Platform,
    /// The paper of shares (§4.1): a new instance for each call that finds none idle, which ends after 60 s without a call;
    /// no queue, no limits. Of the policies only that of shares is asked.
    Paper,
}

impl FromStr for Scheduling {
    type Err = String;

    fn from_str(text: &str) -> Result<Scheduling, String> {
        match text {
            "platform" => Ok(Scheduling::Platform),
            "paper" => Ok(Scheduling::Paper),
            other => Err(format!("unknown policy '{other}' (supported: platform, paper)")),
        }
    }
}

impl Scheduling {
    /// What decided, in words.
    pub fn words(self) -> &'static str {
        match self {
            Scheduling::Platform => "the platform's scheduler decided",
            Scheduling::Paper => {
                "the paper's policy decided (no queue, a new instance where none is idle, kept for 60 s)"
            }
        }
    }
}

/// Refuses settings that nothing can be simulated with.
pub(crate) fn supported(settings: &Settings) -> Result<(), SimError> {
    if settings.pool_bandwidth == Some(0) || settings.far_bandwidth == Some(0) {
        return Err(SimError::Setting {
            name: "a bandwidth of 0",
            reason: "nothing that is moved would ever arrive",
            remedy: "give at least one byte per second, or leave the option out",
        });
    }
    if settings.scheduling == Scheduling::Paper {
        if settings.processors.is_some() {
            return Err(SimError::Setting {
                name: "processors with the paper's policy",
                reason: "it has no nodes",
                remedy: "leave out --processors",
            });
        }
        if settings.ghosts {
            return Err(SimError::Setting {
                name: "ghosts with the paper's policy",
                reason: "it has no containers that wait",
                remedy: "leave out --ghosts",
            });
        }
        let Settings { pool_bandwidth, far_bandwidth, far_bytes, .. } = settings;
        if pool_bandwidth.or(*far_bandwidth).or(*far_bytes).is_some() {
            return Err(SimError::Setting {
                name: "limits of the pool and of far memory with the paper's policy",
                reason: "it has none",
                remedy: "leave out --pool-bandwidth, --far-bandwidth and --far",
            });
        }
        let only = farfork_policy::Settings {
            share: settings.policies.share,
            ..farfork_policy::Settings::default()
        };
        return if settings.policies == only {
            Ok(())
        } else {
            Err(SimError::Setting {
                name: "these policies with the paper's",
                reason: "the paper's policy decides everything but shares of near memory",
                remedy: "set nothing but 'share'",
            })
        };
    }
    Ok(())
}

/// Processors of each node, if calls and starts share them: as set, or else those of the machine of the profiles.
pub(crate) fn processors<'a>(
    behaviours: impl Iterator<Item = &'a Behaviour>,
    settings: &Settings,
) -> Option<u32> {
    let profiled = || behaviours.filter_map(|one| one.cores).max();
    match settings.scheduling {
        Scheduling::Platform => settings.processors.or_else(profiled),
        Scheduling::Paper => None,
    }
}

/// Whether a node has room for an instance of each function, and profiles say what shares of near memory change if
/// they are decided.
pub(crate) fn fits(
    trace: &Trace,
    behaviours: &[Behaviour],
    settings: &Settings,
) -> Result<(), SimError> {
    let has_shares = settings.policies.share.is_some();
    for (one, function) in behaviours.iter().zip(&trace.functions) {
        if let Err(reason) = one.shares.check(has_shares) {
            return Err(SimError::Shares { function: function.name.clone(), reason });
        }
    }
    if settings.scheduling == Scheduling::Paper {
        return Ok(());
    }
    let permille = settings.policies.admission.most_memory_permille.min(1000);
    let largest = behaviours.iter().zip(&trace.functions).max_by_key(|(one, _)| one.limit_mb);
    let Some((one, function)) = largest else { return Ok(()) };
    let needed_bytes = one.limit_mb << 20;
    let allowed = u128::from(settings.node_bytes) * u128::from(permille) / 1000;
    if allowed >= u128::from(needed_bytes) {
        return Ok(());
    }
    Err(SimError::Budget {
        node_bytes: settings.node_bytes,
        function: function.name.clone(),
        needed_bytes,
        permille,
        least_bytes: (needed_bytes * 1000).div_ceil(permille.max(1)),
    })
}
