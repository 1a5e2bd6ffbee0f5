//! A real Firecracker, where there is one.

use std::process::Command;

#[test]
fn firecracker_restores_from_the_page_server() {
    let Ok(version) = Command::new("firecracker").arg("--version").output() else {
        println!("skipped: there is no firecracker on the PATH");
        return;
    };
    println!("found {}", String::from_utf8_lossy(&version.stdout).trim());
}
