//! Sockets.

causes! {
    OTHER_NAMESPACE {
        what: "socket of another network namespace",
        why: "it belongs to another network namespace than the process",
        remedy: "close it before the checkpoint",
    }
    SHUT_DOWN {
        what: "Unix socket without a peer that was shut down",
        why: "it was shut down",
        remedy: "close it before the checkpoint",
    }
    SCTP {
        what: "SCTP socket",
        why: "SCTP keeps its associations in this kernel",
        remedy: "close it before the checkpoint",
    }
    TCP_STATE {
        what: "TCP connection that cannot go on (--tcp-established)",
        why: "only an open connection of plain TCP goes on in a clone",
        remedy: "close it before the checkpoint, or let all connections end in resets",
    }
    TCP_SHARED {
        what: "TCP connection that another process has, too (--tcp-established)",
        why: "another process has the same connection, and would go on using it",
        remedy: "checkpoint both as a tree (--tree), close it in the other process, or let all connections end in resets",
    }
    PING {
        what: "ping socket",
        why: "a ping socket has its id from this kernel",
        remedy: "close it before the checkpoint",
    }
    UNKNOWN_PROTOCOL {
        what: "socket of another IP protocol",
        why: "farfork does not know what its protocol keeps in this kernel",
        remedy: "close it before the checkpoint",
    }
    MULTICAST_SOURCES {
        what: "socket with many selected multicast senders",
        why: "it selects more senders of a multicast group than can be carried",
        remedy: "leave the group before the checkpoint, or select fewer",
    }
    EBPF {
        what: "socket with an eBPF program",
        why: "an eBPF program is attached to it, which belongs to this kernel",
        remedy: "detach it before the checkpoint (SO_DETACH_BPF), or use a classic filter",
    }
    NETLINK_STATE {
        what: "netlink socket of a family with state",
        why: "the kernel keeps state that was set through it",
        remedy: "close it before the checkpoint",
    }
    NETLINK_WAITING {
        what: "netlink socket with messages in it",
        why: "it holds unread messages of the kernel",
        remedy: "read them before the checkpoint",
    }
    PACKET_RING {
        what: "packet socket with a ring (PACKET_RX_RING, PACKET_TX_RING)",
        why: "it shares its ring with the kernel, which writes there at any time",
        remedy: "read from it by recv instead, or open it again after the restore",
    }
    PACKET_FANOUT {
        what: "packet socket of a fanout group with an eBPF or filter program",
        why: "the program that distributes the packets of its group cannot be read",
        remedy: "use another fanout mode (PACKET_FANOUT_HASH), or open it again after the restore",
    }
    PACKET_UNSEEN {
        what: "packet socket, where the kernel does not list them",
        why: "the kernel does not show its rings and memberships (CONFIG_PACKET_DIAG)",
        remedy: "load the module packet_diag, or close it before the checkpoint",
    }
    VSOCK {
        what: "vsock",
        why: "its other end is a virtual machine or its host",
        remedy: "close it before the checkpoint, and open it again after the restore",
    }
    ALG {
        what: "socket of the kernel's cryptography (AF_ALG)",
        why: "the kernel keeps its keys and the state of its operations",
        remedy: "close it before the checkpoint, and open it again after the restore",
    }
    MACHINE_DEVICE {
        what: "Bluetooth or CAN socket",
        why: "its device belongs to this machine",
        remedy: "close it before the checkpoint, and open it again after the restore",
    }
    XDP {
        what: "XDP socket",
        why: "it shares its rings with a network device of this machine",
        remedy: "close it before the checkpoint, and open it again after the restore",
    }
    UNKNOWN_FAMILY {
        what: "socket of any other family",
        why: "farfork does not know what its family keeps in this kernel",
        remedy: "close it before the checkpoint, and open it again after the restore",
    }
    UNIX_LOST {
        what: "Unix socket bound to a path that is gone",
        why: "its file was deleted, so no process can connect to it",
        remedy: "close it before the checkpoint",
    }
    UNIX_WAITING {
        what: "Unix socket with messages in it",
        why: "it holds unread messages from other processes",
        remedy: "read them before the checkpoint",
    }
    UNIX_NAMED_PEER {
        what: "bound Unix datagram socket, connected within the process",
        why: "other processes can send to its name, too",
        remedy: "close it before the checkpoint, or use socketpair",
    }
    UNIX_ONE_WAY {
        what: "Unix datagram socket, connected one way",
        why: "the socket it sends to does not send back to it",
        remedy: "close it before the checkpoint, or use socketpair",
    }
    UNIX_UNACCEPTED {
        what: "Unix connection that is not accepted",
        why: "the listening process has not accepted the connection yet",
        remedy: "checkpoint when the connection is accepted",
    }
    PAIR_CREDENTIALS {
        what: "Unix socket pair with messages of another process",
        why: "it holds unread messages with the credentials of another process",
        remedy: "read its messages before the checkpoint",
    }
    PAIR_DESCRIPTORS {
        what: "descriptor in flight that is external, an epoll, inotify or terminal, or locked",
        why: "it is in flight in a Unix socket, and its kind is not carried there",
        remedy: "receive it before the checkpoint",
    }
    PAIR_TREE {
        what: "pidfd or external descriptor in flight in a tree of processes",
        why: "it is in flight in a Unix socket, and each process of a clone opens its own",
        remedy: "receive it before the checkpoint",
    }
    PAIR_UNREADABLE {
        what: "Unix socket pair with messages that farfork cannot read",
        why: "its messages cannot be read without consuming them",
        remedy: "read its messages before the checkpoint",
    }
}
