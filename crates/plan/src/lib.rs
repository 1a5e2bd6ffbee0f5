//! The flat list of system calls that makes a clone: its format, usable without std.
