//! Mounts, and the root directory.

causes! {
    OTHER_ROOT {
        what: "another root directory",
        why: "a clone has the root directory of its node",
        remedy: "run the program without chroot",
    }
    OTHER_ROOT_FILE_SYSTEM {
        what: "another root file system",
        why: "it is the process's own, and a clone has that of its node",
        remedy: "run the program outside of its container, or farfork inside",
    }
    NAME_GONE {
        what: "file in use that has lost its name",
        why: "nothing has this name any more, as the process sees its directories",
        remedy: "keep it in place until after the checkpoint",
    }
    HIDDEN {
        what: "file in use that the node has hidden",
        why: "the node has something else there, mounted outside of the process's mount namespace",
        remedy: "mount it before the program starts, or not at that place",
    }
    OWN_MOUNT {
        what: "mount that only the process has, with its files on it",
        why: "only the process and its mount namespace have it, and a clone would not",
        remedy: "mount it on every node before the program starts, or bind a directory of the \
            node's there",
    }
}
