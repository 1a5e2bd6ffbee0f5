//! Namespaces, which confine a process or show it another machine.

causes! {
    USER {
        what: "another user namespace",
        why: "it has another user namespace than farfork, where its ids and capabilities mean less",
        remedy: "run the program in farfork's own user namespace, or farfork in the program's \
            (nsenter --user)",
    }
}
