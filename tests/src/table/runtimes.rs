//! Runtimes of other projects.

use crate::Program;
use crate::program::Source::{C, Go, Musl, Script};

pub(super) const PROGRAMS: &[Program] = &[
    Program::of("rt_glibc_malloc", C("malloc_torture")).seconds(240),
    Program::of("rt_musl_threads", Musl("tls")),
    Program::of("rt_musl_shared", Musl("shared_anon")),
    Program::of("rt_jemalloc", C("malloc_torture"))
        .preload("libjemalloc.so.2")
        .caught_naive()
        .seconds(240),
    Program::of("rt_mimalloc", C("malloc_torture")).preload("libmimalloc.so.2").seconds(240),
    Program::of("rt_python", Script("python3", &[], "rt_python.py")).seconds(240),
    Program::of("rt_asyncio", Script("python3", &[], "rt_asyncio.py")).seconds(240),
    Program::of("rt_ruby", Script("ruby", &[], "rt_ruby.rb")).seconds(240),
    Program::of("rt_perl", Script("perl", &[], "rt_perl.pl")),
    java("rt_java_serial", &["-XX:+UseSerialGC", NO_COUNTERS, HEAP]),
    java("rt_java_g1", &["-XX:+UseG1GC", NO_COUNTERS, HEAP]),
    java("rt_java_parallel", &["-XX:+UseParallelGC", NO_COUNTERS, HEAP]),
    java("rt_java_z", &["-XX:+UseZGC", NO_COUNTERS, HEAP]),
    java("rt_java_shenandoah", &["-XX:+UseShenandoahGC", NO_COUNTERS, HEAP]),
    Program::of("rt_go", Go("rt_go")).seconds(240),
    node("rt_node", "rt_node.js"),
    node("rt_node_workers", "rt_node_workers.js"),
];

/// The first clone to end would remove the file of counters that all map.
const NO_COUNTERS: &str = "-XX:-UsePerfData";
const HEAP: &str = "-Xmx256m";

/// What compiled code until then gives memory back every five seconds.
const JAVA_RESTS_S: u64 = 6;

const fn java(name: &'static str, options: &'static [&'static str]) -> Program {
    Program::of(name, Script("java", options, "rt_java.java"))
        .rests_after(JAVA_RESTS_S)
        .seconds(240)
}

/// libuv makes rings of its own accord; a process with a ring is refused.
const fn node(name: &'static str, script: &'static str) -> Program {
    Program::of(name, Script("node", &["--expose-gc"], script))
        .env(&[("UV_USE_IO_URING", "0")])
        .seconds(240)
}
