//! Open files and directories, with their locks.

causes! {
    NOT_UTF_8 {
        what: "path in another encoding",
        why: "its path is not UTF-8",
        remedy: "rename the file or directory",
    }
    TOO_LONG {
        what: "path of more than 4095 bytes",
        why: "its path is longer than a system call takes (PATH_MAX), so that a clone could not open it",
        remedy: "open it by a shorter path, as below a bind mount, or close it",
    }
    REPLACED {
        what: "file that another has replaced or hides",
        why: "another file has this name now",
        remedy: "reopen the file after it was replaced, or close it",
    }
    GONE {
        what: "file that cannot be found",
        why: "no file has this name in the process's view of the file system",
        remedy: "keep the file in place until after the checkpoint, or close it",
    }
    NAMES_ELSEWHERE {
        what: "deleted file with names in other directories",
        why: "the name by which it was opened is gone, and its other names are in other \
            directories",
        remedy: "keep the name by which it was opened, or reopen it by another",
    }
    NO_PLACE {
        what: "unattached mount (open_tree), or another root",
        why: "it is a mount, or another root, that no path of the process leads to",
        remedy: "attach the mount (move_mount), or close it",
    }
    OTHER_PROCESS {
        what: "file of another process in /proc",
        why: "it shows a process that a clone does not have",
        remedy: "close it before the checkpoint",
    }
    OTHER_THREAD {
        what: "file of another thread in /proc",
        why: "it shows a thread that a clone does not have yet when it opens files",
        remedy: "close it before the checkpoint, or try again if it is open for a moment only",
    }
    DELETED_DIRECTORY {
        what: "deleted directory or device",
        why: "it was deleted, and only regular files are carried without a name",
        remedy: "keep it in place until after the checkpoint, or close it",
    }
    DELETED_SHARED {
        what: "deleted file that another process has open",
        why: "the deleted file is open in another process as well, and a clone would get a copy",
        remedy: "close it in one of the two, or keep its name",
    }
    DELETED_LARGE {
        what: "large deleted files",
        why: "deleted files hold more than the 64 MiB that an image takes",
        remedy: "keep the name of large files until after the checkpoint, or close them",
    }
    DELETED_WITH_DIRECTORY {
        what: "deleted file in deleted directories",
        why: "it has no name, and the directories it was in are gone",
        remedy: "keep the directory until after the checkpoint, or close the file",
    }
    DELETED_NO_TMPFILE {
        what: "deleted file of a file system without O_TMPFILE",
        why: "it has no name, and its file system does not support files without one (O_TMPFILE)",
        remedy: "keep its name until after the checkpoint, or put it on another file system",
    }
    LOCK_OUTSIDE {
        what: "lock on a file that the caller supplies",
        why: "the lock is on a file that the caller of restore supplies",
        remedy: "release the lock before the checkpoint",
    }
    LEASE_BREAKING {
        what: "lease that another process breaks",
        why: "another process waits for the lease to be given up",
        remedy: "give the lease up, as its signal asks, then checkpoint",
    }
    LEASE_WRITE {
        what: "write lease",
        why: "opening the file breaks a write lease, and every clone opens it",
        remedy: "give the lease up before the checkpoint, or take a read lease",
    }
}
