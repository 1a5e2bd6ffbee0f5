//! Builds the restorer, a freestanding program with flags of its own, so that the library can
//! carry it inside.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    let crates = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..");
    let out = PathBuf::from(variable("OUT_DIR"));
    for watched in
        ["restorer/src", "restorer/.cargo", "restorer/Cargo.toml", "plan/src", "../base/sys/src"]
    {
        println!("cargo:rerun-if-changed={}", crates.join(watched).display());
    }
    let status = Command::new(variable("CARGO"))
        .args(["build", "--release", "--locked", "--quiet", "--target", TARGET, "--target-dir"])
        .arg(out.join("restorer"))
        // Its own flags stand in its directory; those of this build must not replace them.
        .current_dir(crates.join("restorer"))
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_BUILD_TARGET")
        .status();
    match status {
        Ok(status) if status.success() => {}
        other => panic!("building the restorer failed: {other:?}"),
    }
    let program = out.join("restorer").join(TARGET).join("release/farfork-restorer");
    println!("cargo:rustc-env=FARFORK_RESTORER={}", program.display());
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
