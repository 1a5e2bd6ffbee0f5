//! Mappings, and memory that is shared.

causes! {
    WINDOW {
        what: "memory in the restorer window",
        why: "it lies where farfork keeps its own code in a clone",
        remedy: "map it elsewhere",
    }
    AIO {
        what: "Linux AIO context",
        why: "it is a Linux AIO context, and the kernel does not show its requests in progress",
        remedy: "destroy it before the checkpoint (io_destroy), or declare it idle (farfork \
            checkpoint --aio-idle)",
    }
    AIO_EVENTS {
        what: "Linux AIO context with events in it",
        why: "it holds unread events, which cannot be read without consuming them",
        remedy: "read them before the checkpoint, or try again",
    }
    AIO_RING {
        what: "Linux AIO ring that was changed, or inherited by fork",
        why: "it is not the unchanged ring of a context of this process",
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
        what: "System V shared memory from another IPC namespace",
        why: "the attached segment is not in the IPC namespace of the process",
        remedy: "detach it before the checkpoint, or attach it after unshare(CLONE_NEWIPC)",
    }
    SHARED_UNSEEN {
        what: "shared anonymous memory, where farfork is not root",
        why: "the kernel shows it only with CAP_CHECKPOINT_RESTORE",
        remedy: "run farfork and its node agent as root, or use memfd_create and keep the descriptor",
    }
    SECRET {
        what: "mapping of memfd_secret",
        why: "only the process itself can read it",
        remedy: "unmap it before the checkpoint",
    }
    CHANNEL {
        what: "memory shared with another process, without a name in a file system",
        why: "another process has the same memory, and a clone would get a copy",
        remedy: "unmap or close it in one of them before the checkpoint",
    }
    OBJECTS_REGION {
        what: "region of objects",
        why: "it is a region of objects, and clones would all be the same client of it",
        remedy: "close it before the checkpoint (ff_close, in a hook before_checkpoint) and open it \
            after the restore",
    }
    FILE_REPLACED {
        what: "mapped file that another has replaced or hides",
        why: "another file has its name now",
        remedy: "restart the program with the new file, or unmount what hides the old one",
    }
    FILE_GONE {
        what: "mapped file that cannot be found",
        why: "no file has its name in the process's view of the file system",
        remedy: "keep the file in place until after the checkpoint",
    }
}
