//! Mappings, and memory that is shared.

causes! {
    WINDOW {
        what: "memory where farfork's code lies in a clone",
        why: "it lies where farfork keeps its own code in a clone",
        remedy: "map it elsewhere",
    }
    AIO {
        what: "context of Linux AIO",
        why: "it is a context of Linux AIO, and the kernel does not tell what is under way in it",
        remedy: "io_destroy it before the checkpoint, or vouch that nothing is: farfork checkpoint \
            --aio-idle",
    }
    AIO_EVENTS {
        what: "context of Linux AIO with events in it",
        why: "events wait in it, and cannot be read without taking them",
        remedy: "read them before the checkpoint, or try again",
    }
    AIO_RING {
        what: "ring of Linux AIO that was changed, or came from before a fork",
        why: "it is not the ring of a context of this process, as the kernel makes them",
        remedy: "unmap it before the checkpoint",
    }
    DEVICE {
        what: "mapping of a device",
        why: "it is memory of a device",
        remedy: "close the device before the checkpoint",
    }
    HUGETLB {
        what: "huge pages of hugetlbfs that are shared or have a name",
        why: "it uses huge pages of hugetlbfs that are shared or have a name",
        remedy: "use private ones (MAP_PRIVATE, MAP_ANONYMOUS, MAP_HUGETLB) or transparent ones",
    }
    USERFAULTFD {
        what: "range registered with userfaultfd",
        why: "userfaultfd watches it",
        remedy: "unregister it before the checkpoint",
    }
    SHADOW_STACK {
        what: "shadow stack",
        why: "it is a shadow stack",
        remedy: "run with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off",
    }
    UNKNOWN_SHARED {
        what: "other shared memory",
        why: "farfork does not know what kind of shared memory it is",
        remedy: "unmap it before the checkpoint",
    }
    SYSTEM_V_ELSEWHERE {
        what: "shared memory of System V from another IPC namespace",
        why: "no segment in the IPC namespace of the process is the one that it has attached",
        remedy: "detach it before the checkpoint, or attach it after unshare(CLONE_NEWIPC)",
    }
    SHARED_UNSEEN {
        what: "shared anonymous memory, where farfork is not root",
        why: "the kernel shows it to nobody without CAP_CHECKPOINT_RESTORE",
        remedy: "run farfork and its node agent as root, or use memfd_create and keep the descriptor",
    }
    SECRET {
        what: "mapping of memfd_secret",
        why: "it is memory that only the process itself can read",
        remedy: "unmap it before the checkpoint",
    }
    CHANNEL {
        what: "memory shared with another process, without a name in a file system",
        why: "another process has the same memory, and a clone's would be its own",
        remedy: "unmap or close it in one of them before the checkpoint",
    }
    FILE_REPLACED {
        what: "mapped file that another has replaced or hides",
        why: "another file has its name now",
        remedy: "restart the program with the new file, or unmount what hides the old one",
    }
    FILE_GONE {
        what: "mapped file that cannot be found",
        why: "no file has its name, as the process sees its directories",
        remedy: "keep the file in place until after the checkpoint",
    }
}
