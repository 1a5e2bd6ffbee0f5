//! The command `farfork`.

fn main() {}
