//! Descriptors that are neither files nor sockets: pipes, terminals, devices, kernel objects.

causes! {
    FANOTIFY_ASKED {
        what: "fanotify group that decides permissions (FAN_CLASS_CONTENT, FAN_CLASS_PRE_CONTENT)",
        why: "other processes may wait for its answers",
        remedy: "close it before the checkpoint, or use FAN_CLASS_NOTIF",
    }
    FANOTIFY_MOUNT {
        what: "fanotify mark of a mount, or of a mount namespace",
        why: "a clone has mounts of its own, and would miss events that come through other mounts",
        remedy: "mark the file system (FAN_MARK_FILESYSTEM) or directories instead",
    }
    FANOTIFY_RIGHTS {
        what: "fanotify group of a process without CAP_SYS_ADMIN",
        why: "the kernel does not show whether it was made with that capability, which decides \
            what events it gets",
        remedy: "close it before the checkpoint, or watch by inotify",
    }
    PRESSURE {
        what: "writable file of pressure stall information (/proc/pressure, *.pressure of a cgroup)",
        why: "it may have a trigger, which the kernel does not show",
        remedy: "close it before the checkpoint, or open it for reading only",
    }
    HUGE_MEMFD {
        what: "memfd of huge pages",
        why: "it holds huge pages of hugetlbfs",
        remedy: "make it without MFD_HUGETLB",
    }
    IO_URING {
        what: "ring of io_uring that is not one of libuv's",
        why: "only idle rings that change epoll instances, as libuv's do, are carried",
        remedy: "start the program by `farfork run`, as on a kernel without io_uring, so that libraries do \
            without",
    }
    IO_URING_BUSY {
        what: "ring of io_uring with requests under way",
        why: "requests are under way, or their results unread",
        remedy: "checkpoint the process when it is idle, or start it by `farfork run`, as on a kernel \
            without io_uring",
    }
    IO_URING_SET_UP {
        what: "ring of io_uring with a thread of the kernel (SQPOLL), something registered, or one issuer",
        why: "it is polled by a thread of the kernel, restricted to one thread or in what it does, or has \
            files, buffers or an eventfd registered",
        remedy: "start the program by `farfork run`, as on a kernel without io_uring, so that libraries do \
            without",
    }
    IO_URING_WORN {
        what: "ring of io_uring that has seen more than 131072 requests",
        why: "a clone's ring would have to be advanced by as many requests, one by one",
        remedy: "checkpoint the program sooner after its start, or start it by `farfork run`, as on a \
            kernel without io_uring",
    }
    USERFAULTFD {
        what: "userfaultfd",
        why: "it handles page faults of this process",
        remedy: "close it before the checkpoint",
    }
    PERF_EVENT {
        what: "performance counter (perf_event_open)",
        why: "it counts events of this process",
        remedy: "stop profiling before the checkpoint",
    }
    BPF {
        what: "eBPF program or map",
        why: "it is a program or map of this kernel",
        remedy: "close it before the checkpoint",
    }
    BTF {
        what: "eBPF type information",
        why: "it describes types of this kernel",
        remedy: "close it before the checkpoint",
    }
    VIRTUAL_MACHINE {
        what: "KVM virtual machine, its memory, /dev/kvm",
        why: "a virtual machine lives in this kernel",
        remedy: "stop the machine before the checkpoint",
    }
    VFIO {
        what: "VFIO device",
        why: "it is a device given to this process",
        remedy: "close the device before the checkpoint",
    }
    IOMMU {
        what: "iommufd address space",
        why: "it maps memory for devices",
        remedy: "close the device before the checkpoint",
    }
    SYNC_FILE {
        what: "fence of a device (sync_file)",
        why: "it waits for a device",
        remedy: "close the device before the checkpoint",
    }
    DMA_BUFFER {
        what: "buffer of a device (dma-buf)",
        why: "it is memory of a device",
        remedy: "close the device before the checkpoint",
    }
    SECRET {
        what: "memfd_secret",
        why: "only the process itself can read it",
        remedy: "close it before the checkpoint",
    }
    SECCOMP {
        what: "supervisor's end of a seccomp filter",
        why: "it supervises system calls of a process",
        remedy: "close it before the checkpoint",
    }
    LANDLOCK {
        what: "Landlock ruleset",
        why: "it is a ruleset that is not yet in force",
        remedy: "close it before the checkpoint",
    }
    MOUNT_CONTEXT {
        what: "unfinished mount (fsopen)",
        why: "it is an unfinished mount",
        remedy: "finish the mount before the checkpoint",
    }
    NAMESPACE {
        what: "namespace",
        why: "a namespace lives in this kernel",
        remedy: "close it before the checkpoint",
    }
    PROCESS_HANDLE {
        what: "pidfd of another process or of a thread",
        why: "it stands for a process or thread that a clone does not have",
        remedy: "close it before the checkpoint, and open it again by the pid",
    }
    PROCESS_HANDLE_SHARED {
        what: "pidfd that several processes inherited",
        why: "several processes inherited it, and the processes of a clone open their own",
        remedy: "open it in each process (pidfd_open), or close it in all but one",
    }
    UNKNOWN {
        what: "any other object of the kernel",
        why: "farfork does not know what it holds",
        remedy: "close it before the checkpoint",
    }
    MESSAGE_QUEUE {
        what: "POSIX message queue",
        why: "it is a message queue of this kernel",
        remedy: "close it before the checkpoint, or use a socket pair",
    }
    GRAPHICS {
        what: "graphics device",
        why: "the graphics device holds state of the process",
        remedy: "close the device before the checkpoint",
    }
    ACCELERATOR {
        what: "NVIDIA accelerator",
        why: "the accelerator holds state of the process",
        remedy: "close the device before the checkpoint",
    }
    FUSE {
        what: "/dev/fuse",
        why: "a file system is served through it",
        remedy: "close the device before the checkpoint",
    }
    TUN {
        what: "/dev/net/tun",
        why: "a network interface lives in this kernel",
        remedy: "close the device before the checkpoint",
    }
    FAULT_HANDLERS {
        what: "/dev/userfaultfd",
        why: "it hands out page fault handlers",
        remedy: "close the device before the checkpoint",
    }
    DEVICE {
        what: "any other device with state",
        why: "a device holds state that only its driver knows",
        remedy: "close the device before the checkpoint",
    }
    PIPE_BOTH_WAYS {
        what: "pipe opened with O_RDWR",
        why: "the pipe was opened for reading and writing at once",
        remedy: "open its ends separately",
    }
    PIPE_OPENED_AGAIN {
        what: "pipe with an end opened more than once",
        why: "the same end of the pipe was opened again through /proc",
        remedy: "use dup instead of opening /proc/self/fd or /dev/fd",
    }
    PIPE_PACKETS {
        what: "pipe with packets in it",
        why: "the pipe holds packets (O_DIRECT), and their boundaries are not carried",
        remedy: "read them before the checkpoint",
    }
    PIPE_TOO_FULL {
        what: "pipe with more bytes in it than farfork can read",
        why: "only some of its bytes can be read without consuming them",
        remedy: "read them before the checkpoint, or make its capacity at most fs.pipe-max-size",
    }
    TERMINAL_SHARED {
        what: "master of a terminal that another process uses",
        why: "another process has its terminal open",
        remedy: "checkpoint it when the programs in the terminal have ended",
    }
    TERMINAL_SESSION {
        what: "master of a terminal with a session",
        why: "the terminal controls a session of other processes",
        remedy: "checkpoint the tree of their common ancestor (--tree), or when the programs in \
            the terminal have ended",
    }
    TERMINAL_CLOSED {
        what: "terminal of a session whose leader has closed it",
        why: "the leader of its session has closed all descriptors of it",
        remedy: "keep it open in that process until after the checkpoint",
    }
    TERMINAL_LEFT {
        what: "terminal that a process of its session has given up",
        why: "a process of its session has given it up (TIOCNOTTY)",
        remedy: "let such a process make a session of its own (setsid)",
    }
    TERMINAL_FOREGROUND {
        what: "terminal without a process in the foreground",
        why: "its foreground process group has ended",
        remedy: "try again when the shell has noticed",
    }
    TERMINAL_BYTES {
        what: "terminal with bytes in it",
        why: "the terminal holds unread bytes, which cannot be read without consuming them",
        remedy: "read them before the checkpoint, or try again",
    }
    EPOLL_STALE {
        what: "epoll with a watch that outlived its descriptor",
        why: "the descriptor was closed or reused while its file stayed open elsewhere",
        remedy: "remove a descriptor from epoll (EPOLL_CTL_DEL) before closing it",
    }
    EVENTS_WAIT {
        what: "inotify or fanotify with events in it",
        why: "it holds unread events, which cannot be read without consuming them",
        remedy: "read them before the checkpoint, or try again",
    }
    WATCH_LOST {
        what: "inotify or fanotify watching a file without a name",
        why: "what it watches has no name by which a clone could find it",
        remedy: "remove the watch before the checkpoint, or watch a directory of a disk or tmpfs",
    }
    WATCH_UNSEEN {
        what: "inotify or fanotify watching, where farfork is not root",
        why: "the kernel shows what it watches only with CAP_DAC_READ_SEARCH",
        remedy: "run farfork as root, or remove the watch before the checkpoint",
    }
    ASYNC_OUTSIDE {
        what: "external descriptor with O_ASYNC",
        why: "it is an external descriptor that signals the process when it becomes ready \
            (O_ASYNC)",
        remedy: "clear O_ASYNC before the checkpoint",
    }
    ASYNC_OTHER {
        what: "descriptor that signals another process or a thread",
        why: "it signals a thread, a process group or another process (F_SETOWN)",
        remedy: "make it signal the process itself, or clear O_ASYNC before the checkpoint",
    }
    NOT_OPEN {
        what: "descriptor named by --external-fd that is not open",
        why: "clones are to be supplied with a descriptor that the process does not have",
        remedy: "keep it open until the checkpoint, or leave out --external-fd",
    }
    TOO_MANY_OUTSIDE {
        what: "too many external descriptors",
        why: "it has more external descriptors than a clone can be given",
        remedy: "close connections before the checkpoint",
    }
}
