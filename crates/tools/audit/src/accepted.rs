//! In what a clone is meant to differ from its parent, and why.

use crate::facts::{Difference, Facts};

/// A difference that is meant.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// How the name of the fact begins.
    pub begins: &'static str,
    /// How it ends.
    pub ends: &'static str,
    /// Why a clone differs.
    pub why: &'static str,
    /// Whether the values differ as they are meant to.
    is_meant: fn(&Look<'_>) -> bool,
}

/// A difference, and all that is known of the two processes.
struct Look<'a> {
    fact: &'a str,
    /// Empty if there is none.
    parent: &'a str,
    clone: &'a str,
    of_parent: &'a Facts,
    of_clone: &'a Facts,
}

impl Look<'_> {
    /// Another fact about the same descriptor.
    fn beside<'f>(&self, facts: &'f Facts, name: &str) -> Option<&'f str> {
        let (descriptor, _) = self.fact.split_once('/').unwrap_or((self.fact, ""));
        facts.get(&format!("{descriptor}{name}"))
    }

    fn is_of_domain(&self, domains: &[&str]) -> bool {
        let domain = self.beside(self.of_parent, "/socket/SOL_SOCKET 39");
        domain.is_some_and(|domain| domains.contains(&domain))
    }

    fn is_internet_stream(&self) -> bool {
        let kind = self.beside(self.of_parent, "/socket/SOL_SOCKET 3");
        kind == Some("[1, 0, 0, 0]") && self.is_of_domain(&NETWORKS)
    }

    fn is_now_memfd(&self) -> bool {
        self.beside(self.of_clone, "").is_some_and(|path| path.starts_with("/memfd:"))
    }
}

const O_LARGEFILE: u32 = 0o100_000;
const O_TMPFILE: u32 = 0o20_200_000;
/// Address families of networks as SO_DOMAIN shows them.
const NETWORKS: [&str; 3] = ["[2, 0, 0, 0]", "[10, 0, 0, 0]", "[17, 0, 0, 0]"];

/// Whether flags of the parent lack only these for the clone.
fn differ_by(look: &Look<'_>, flags: u32) -> bool {
    let number = |text: &str| u32::from_str_radix(text, 8).ok();
    number(look.parent)
        .zip(number(look.clone))
        .is_some_and(|(parent, clone)| parent & !flags == clone)
}

const fn accept(
    begins: &'static str,
    ends: &'static str,
    why: &'static str,
    is_meant: fn(&Look<'_>) -> bool,
) -> Accepted {
    Accepted { begins, ends, why, is_meant }
}

/// All that are.
pub const ACCEPTED: &[Accepted] = &[
    accept(
        "namespace/",
        "",
        "a clone has a PID namespace of its own, and in a ghost others",
        |_| true,
    ),
    accept("thread ", "/status/Seccomp_filters", "the supervisor's filter is one more", |look| {
        look.parent.parse().is_ok_and(|count: u32| look.clone == (count + 1).to_string())
    }),
    accept("thread ", "/status/Seccomp", "the supervisor's filter", |look| look.clone == "2"),
    accept("thread ", "/status/NSsid", "a session of another process is not carried", |look| {
        look.parent == "another's"
    }),
    accept("thread ", "/status/NSpgid", "a group of another process is not carried", |look| {
        look.parent == "another's"
    }),
    accept(
        "thread ",
        "/syscall",
        "the parent's call goes on where the checkpoint interrupted it",
        |look| {
            // restart_syscall(2), with the arguments of the call.
            let rest = |call: &str| call.split_once(' ').map(|(_, rest)| rest.to_owned());
            look.parent.starts_with("219 ") && rest(look.parent) == rest(look.clone)
        },
    ),
    accept("memory ", "", "locked memory is locked page by page as it is touched", |look| {
        look.clone == look.parent.replace(" lo", " lo lf")
    }),
    accept("thread ", "/syscall", "threads go on beside the one that waits", |look| {
        look.of_parent.get("stat/threads").is_some_and(|count| count != "1")
    }),
    accept("memory ", "", "shared memory of a file without a name is a memfd", |look| {
        let rest = |value: &str| value.split_once(" /").map(|(rights, _)| rights.to_owned());
        rest(look.parent) == rest(look.clone)
            && look.parent.contains(" (deleted) at ")
            && look.clone.contains("/memfd:")
    }),
    accept(
        "memory ",
        "",
        "a shared mapping that was made before its memfd was sealed may not become writable",
        |look| look.parent.starts_with("r--s") && look.clone == look.parent.replace(" sh ", " "),
    ),
    accept("stat/terminal", "", "a pseudo-terminal of its own has another number", |_| true),
    accept("fd ", "/tty-index", "a pseudo-terminal of its own has another number", |_| true),
    accept("fd ", "", "a pseudo-terminal of its own has another number", |look| {
        look.parent.starts_with("/dev/pts/") && look.clone.starts_with("/dev/pts/")
    }),
    accept("fd ", "", "a TCP connection is not carried: the clone finds it reset", |look| {
        // Whether it has a peer, or had one: IP_MTU is known.
        let was_connected = |facts| {
            look.beside(facts, "/socket/peer").is_some_and(|peer| peer.starts_with("Ok"))
                || look
                    .beside(facts, "/socket/IPPROTO_IP 14")
                    .is_some_and(|mtu| !mtu.starts_with("error"))
        };
        look.fact.contains("/socket/")
            && look.is_internet_stream()
            && was_connected(look.of_parent)
            && !was_connected(look.of_clone)
    }),
    accept("fd ", "/socket/bytes waiting", "datagrams from the network may be lost", |look| {
        !look.is_internet_stream() && look.is_of_domain(&NETWORKS)
    }),
    accept(
        "fd ",
        "/socket/address",
        "the name of an accepted Unix stream is not carried",
        |look| look.is_of_domain(&["[1, 0, 0, 0]"]) && look.clone == "[1, 0]",
    ),
    accept("fd ", "/socket/peer", "the name of an accepted Unix stream is not carried", |look| {
        look.is_of_domain(&["[1, 0, 0, 0]"]) && look.clone == "Ok([1, 0])"
    }),
    accept(
        "fd ",
        "/socket/peer's credentials",
        "pairs of a tree are made by its first process",
        |look| look.is_of_domain(&["[1, 0, 0, 0]"]),
    ),
    accept(
        "fd ",
        "/socket/address",
        "netlink gives a port to a socket that joins groups",
        |look| look.parent.starts_with("[16, 0, 0, 0, 0, 0, 0, 0,"),
    ),
    accept("fd ", "", "a named pipe of the process alone has no name any more", |look| {
        !look.fact.contains('/') && look.clone == "pipe" && look.parent.starts_with('/')
    }),
    accept("fd ", "/flags", "a named pipe was opened, with O_LARGEFILE; another was not", |look| {
        look.beside(look.of_clone, "") == Some("pipe") && differ_by(look, O_LARGEFILE)
    }),
    accept(
        "fd ",
        "",
        "a file without a name has another number, another name, or is a memfd",
        |look| !look.fact.contains('/') && look.parent.ends_with(" (deleted)"),
    ),
    accept("fd ", "/flags", "a file that was made without a name is a memfd", |look| {
        differ_by(look, O_TMPFILE) && look.is_now_memfd()
    }),
    accept("fd ", "/seals", "a file without a name is a memfd", |look| {
        look.parent.is_empty() && look.clone == "SealFlags(0x0)" && look.is_now_memfd()
    }),
    accept("fd ", "/flags", "standard streams are the caller's", |look| {
        ["fd 0/", "fd 1/", "fd 2/"].iter().any(|name| look.fact.starts_with(name))
    }),
    accept(
        "fd ",
        "",
        "a watch that has fired once would still report errors and hang-ups",
        |look| {
            let fired = " events: 40000000 ";
            look.fact.contains("/tfd ")
                && look.clone == look.parent.replace(fired, " events: 40000018 ")
        },
    ),
    accept("fd ", "/it_value", "the time that is left goes on", |look| {
        let seconds = |value: &str| {
            let (seconds, _) = value.trim_start_matches('(').split_once(',')?;
            seconds.parse::<i64>().ok()
        };
        let both = seconds(look.parent).zip(seconds(look.clone));
        both.is_some_and(|(parent, clone)| (parent - clone).abs() <= 5)
    }),
];

/// Whether a difference is meant.
pub fn is_accepted(difference: &Difference, (of_parent, of_clone): (&Facts, &Facts)) -> bool {
    let fact = &*difference.fact;
    let (parent, clone) = (&difference.parent, &difference.clone);
    let value = |value: &'_ Option<String>| value.clone().unwrap_or_default();
    let (parent, clone) = (value(parent), value(clone));
    let look = Look { fact, parent: &parent, clone: &clone, of_parent, of_clone };
    let is_it = |it: &&Accepted| fact.starts_with(it.begins) && fact.ends_with(it.ends);
    ACCEPTED.iter().filter(is_it).any(|it| (it.is_meant)(&look))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_of_what_is_carried_lists_all() {
        let text = include_str!("../../../../docs/reference/what-is-carried.md");
        for accepted in ACCEPTED {
            assert!(text.contains(&format!("- {}\n", accepted.why)), "{}", accepted.why);
        }
        for unseen in crate::UNSEEN {
            assert!(text.contains(&format!("- {unseen}\n")), "{unseen}");
        }
    }

    #[test]
    fn what_is_not_meant_is_reported() {
        let facts = Facts::default();
        let is_accepted = |fact: &str, parent: &str, clone: &str| {
            let value = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            let fact = fact.to_owned();
            let difference = Difference { fact, parent: value(parent), clone: value(clone) };
            is_accepted(&difference, (&facts, &facts))
        };
        let filters = "thread leader/status/Seccomp_filters";
        assert!(is_accepted(filters, "0", "1"));
        assert!(!is_accepted(filters, "0", "2") && !is_accepted(filters, "1", "1"));
        assert!(is_accepted("memory 1000-2000", "rw-p rd wr lo", "rw-p rd wr lo lf"));
        assert!(!is_accepted("memory 1000-2000", "rw-p rd wr lo", "rw-p rd wr"));
        assert!(is_accepted("thread leader/status/NSsid", "another's", "its own"));
        assert!(!is_accepted("thread leader/status/NSsid", "its own", "another's"));
        assert!(!is_accepted("fd 7/flags", "02", "0"));
        assert!(!is_accepted("thread leader/syscall", "0 0x0", "running"));
    }
}
