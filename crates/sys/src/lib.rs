//! Every raw system call and kernel structure farfork uses, behind documented functions.
