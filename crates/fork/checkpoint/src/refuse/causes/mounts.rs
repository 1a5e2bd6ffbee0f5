//! Mounts, and the root directory.

causes! {
    OTHER_ROOT {
        what: "another root directory",
        why: "a clone has the root directory of its node",
        remedy: "run the program without chroot",
    }
    OTHER_ROOT_FILE_SYSTEM {
        what: "another root file system",
        why: "the process has a root file system of its own, and a clone has that of its node",
        remedy: "run the program outside of its container, or farfork inside",
    }
    NAME_GONE {
        what: "file in use that has lost its name",
        why: "no file has this name any more in the process's view of the file system",
        remedy: "keep it in place until after the checkpoint",
    }
    HIDDEN {
        what: "file in use that a mount of the node hides",
        why: "the node has another mount there, outside of the process's mount namespace",
        remedy: "mount it before the program starts, or at another place",
    }
    OWN_LAYER {
        what: "file that was written in its ghost",
        why: "it lies in the ghost's own layer, where a clone begins with the node's files, and is not as \
            the node has it",
        remedy: "close or unmap it before the checkpoint, or keep its content in memory",
    }
    OWN_MOUNT {
        what: "mount that only the process has, with its files on it",
        why: "only the process's mount namespace has it, and a clone would not",
        remedy: "mount it on every node before the program starts, or bind a directory of the \
            node's there",
    }
}
