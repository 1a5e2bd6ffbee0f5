//! The catalogue of causes, by what they are about.
//!
//! Nothing outside of this directory can make a [`Cause`], and `causes!` lists each one that it
//! names. A cause that is not used any more is dead code to the compiler.

/// Names causes, and lists them as `ALL`. The list holds copies, so that being listed is not a use.
macro_rules! causes {
    ($($name:ident { what: $what:literal, why: $why:literal, remedy: $remedy:literal $(,)? })+) => {
        use super::Cause;

        $(pub const $name: &Cause = &Cause { what: $what, why: $why, remedy: $remedy };)+

        /// The causes of this group.
        pub const ALL: &[Cause] = &[$(Cause { what: $what, why: $why, remedy: $remedy }),+];
    };
}

pub mod descriptors;
pub mod files;
pub mod memory;
pub mod mounts;
pub mod namespaces;
pub mod process;
pub mod sockets;
pub mod threads;

/// Why a kind of thing is not carried. As JSON, the reason and the remedy of a refusal.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct Cause {
    #[serde(skip)]
    what: &'static str,
    #[serde(rename = "reason")]
    why: &'static str,
    remedy: &'static str,
}

impl Cause {
    /// The kind of thing; a refusal names the very thing instead.
    pub fn what(&self) -> &'static str {
        self.what
    }

    /// Why it cannot be carried.
    pub fn why(&self) -> &'static str {
        self.why
    }

    /// What the user can do.
    pub fn remedy(&self) -> &'static str {
        self.remedy
    }
}

/// The catalogue: every cause, under the name of its group.
pub const GROUPS: &[(&str, &[Cause])] = &[
    ("Memory", memory::ALL),
    ("Threads", threads::ALL),
    ("Descriptors", descriptors::ALL),
    ("Sockets", sockets::ALL),
    ("Files", files::ALL),
    ("Mounts", mounts::ALL),
    ("Namespaces", namespaces::ALL),
    ("Process", process::ALL),
];
