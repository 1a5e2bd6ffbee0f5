//! Sockets of all families, and what was set on them.

use crate::Program;

pub(super) const PROGRAMS: &[Program] = &[
    Program::c("unix_sockets").own_network(),
    Program::c("tcp_listening").own_network(),
    Program::c("tcp_reset").own_network(),
    Program::c("tcp_established").hands_over(),
    Program::c("mptcp").own_network(),
    Program::c("raw_ip").own_network(),
    Program::c("packet").own_network(),
    Program::c("netlink").own_network(),
    Program::c("udp").own_network(),
    Program::c("udp_within").own_network(),
    Program::c("multicast").own_network(),
    Program::c("socket_options").own_network(),
];
