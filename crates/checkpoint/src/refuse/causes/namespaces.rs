//! Namespaces, which confine a process or show it another machine.

causes! {
    HOST_NAME {
        what: "another UTS namespace",
        why: "it has a host name of its own, and a clone has that of its node",
        remedy: "run the program without unshare --uts, or farfork in its namespace \
            (nsenter --uts)",
    }
    IPC {
        what: "another IPC namespace",
        why: "it has message queues and shared memory apart, and a clone has those of its node",
        remedy: "run the program without unshare --ipc, or farfork in its namespace \
            (nsenter --ipc)",
    }
    OF_THREAD {
        what: "mount or network namespace of a single thread",
        why: "the thread is in another namespace than the first one, where its clone would be",
        remedy: "checkpoint it when the thread has ended or gone back (setns)",
    }
    PID_FOR_CHILDREN {
        what: "another PID namespace for children",
        why: "its children are to be in a PID namespace of their own, and those of a clone would \
            not",
        remedy: "run the program without unshare(CLONE_NEWPID)",
    }
}
