//! Certificates beside the shared key, made as the guide says.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use farfork_tests::certificates::{BOTH, Files, missing, with};
use farfork_tests::driver::Tests;
use farfork_tests::nodes::demand;
use farfork_tests::program::Program;
use farfork_tests::{Outcome, Trouble, farfork, testbed};
use nix::sys::signal::Signal;

use crate::bed::Bed;
use crate::failures::must_end;
use crate::shared_memory::must_use;

/// Adds the tests.
pub fn add(tests: &mut Tests) {
    tests.add("far::tls_answers", missing(), answers);
    tests.add("far::tls_refused", missing(), refusals);
    tests.add("far::tls_tier", missing(), tier);
}

fn answers() -> Outcome {
    let mut bed = Bed::set("tls")?;
    let files = Files::of("far-tls")?;
    files.node("home", "ca", "10.77.0.1", BOTH)?;
    files.node("away", "ca", "10.77.0.2", BOTH)?;
    let (home, away) = (files.options("home", "ca"), files.options("away", "ca"));
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve_with(&with(&home, &["--tcp-only"]))?;
    let (mut clone, pid) = bed.detached(&image, &with(&away, &["--no-prefetch"]))?;
    clone.send(b"t");
    clone.await_line("NOTE touched 1")?;
    must_use(&bed, "tcp+tls")?;
    // A server that starts anew is verified anew.
    bed.signal_server(Signal::SIGKILL)?;
    bed.serve_with(&with(&home, &["--tcp-only"]))?;
    clone.send_byte();
    bed.must_pass(pid)?;
    bed.clone(&image, &with(&away, &[]))?.must_pass()?;
    // Without the options, a mount that has them is used.
    let (clone, pid) = bed.detached(&image, &["--no-prefetch"])?;
    drop_all(&bed)?;
    bed.signal_server(Signal::SIGKILL)?;
    bed.serve()?;
    must_end(&bed, clone, pid, &["has no certificate, which --tls-ca demands here"])?;
    testbed::eventually("the unmount", || Ok(farfork::run(bed.unmount()?)?.status.success()))?;
    bed.signal_server(Signal::SIGKILL)?;
    bed.serve_with(&with(&home, &[]))?;
    bed.clone(&image, &with(&away, &["--no-prefetch"]))?.must_pass()?;
    must_use(&bed, "shm+tls")
}

fn drop_all(bed: &Bed) -> Outcome {
    crate::failures::drop_cached(bed)
}

fn refusals() -> Outcome {
    let mut bed = Bed::set("tls-refused")?;
    let files = Files::of("far-tls-refused")?;
    files.authority("other-ca")?;
    files.node("home", "ca", "10.77.0.1", BOTH)?;
    files.node("away", "ca", "10.77.0.2", BOTH)?;
    files.node("foreign", "other-ca", "10.77.0.2", BOTH)?;
    files.node("server", "ca", "10.77.0.2", "serverAuth")?;
    let image = bed.image(&Program::c("far_pages"))?;
    let home = files.options("home", "ca");
    bed.serve_with(&with(&home, &["--tcp-only"]))?;
    let refused = |options: &[String], words: &str| -> Outcome {
        let said = bed.refused(bed.restore(&image, &with(options, &[]))?)?;
        demand(said.contains(words) && said.contains(bed.address()), words, &said)?;
        demand(bed.status()?["reads"] == 0, "no read", &bed.status()?)
    };
    // The key alone, which a thief may have.
    refused(&[], "demands a certificate beside the shared key")?;
    refused(&files.options("foreign", "ca"), "(CA)")?;
    refused(&files.options("away", "other-ca"), "(CA)")?;
    refused(&files.options("server", "ca"), "it is not for clients (extendedKeyUsage)")?;
    let away = files.options("away", "ca");
    bed.clone(&image, &with(&away, &["--no-prefetch"]))?.must_pass()?;
    // What is mounted with one certificate is not used with another.
    let said = bed.refused(bed.restore(&image, &with(&files.options("server", "ca"), &[]))?)?;
    demand(said.contains("is mounted with other certificates"), "a refusal", &said)?;
    let key = files.at("away.key");
    let readable = fs::set_permissions(&key, Permissions::from_mode(0o644));
    readable.map_err(|error| Trouble::during("chmod", error))?;
    let said = bed.refused(bed.restore(&image, &with(&away, &[]))?)?;
    demand(said.contains("chmod 600"), "a remedy", &said)?;
    // A certificate for another address than the server's.
    bed.signal_server(Signal::SIGKILL)?;
    let far = files.options("server", "ca");
    bed.serve_with(&with(&far, &["--tcp-only"]))?;
    testbed::eventually("the unmount", || Ok(farfork::run(bed.unmount()?)?.status.success()))?;
    let foreign = files.options("foreign", "ca");
    let said = bed.refused(bed.restore(&image, &with(&foreign, &[]))?)?;
    demand(said.contains("it is not for this address (subjectAltName)"), "the reason", &said)
}

/// Images with far parts remember the files, and restores need no options.
fn tier() -> Outcome {
    let mut bed = Bed::set("tls-tier")?;
    let files = Files::of("far-tls-tier")?;
    files.node("home", "ca", "10.77.0.1", BOTH)?;
    files.node("away", "ca", "10.77.0.2", BOTH)?;
    let (home, away) = (files.options("home", "ca"), files.options("away", "ca"));
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve_with(&with(&home, &["--tcp-only"]))?;
    let near = crate::tier::Near::pulled(bed, "tls-tier", image, &with(&away, &[]))?;
    near.tier(&with(&away, &["--all"]))?;
    near.clone(&[])?.must_pass()?;
    must_use(&near.bed, "tcp+tls")?;
    let unmounted = || Ok(farfork::run(near.bed.unmount()?)?.status.success());
    // The agent holds the file of the far parts: it ends first.
    for socket in fs::read_dir(near.bed.run()).into_iter().flatten().flatten() {
        let _ = testbed::end_agent(&socket.path());
    }
    testbed::eventually("the unmount", unmounted)?;
    near.clone(&[])?.must_pass()?;
    must_use(&near.bed, "tcp+tls")?;
    near.back()?;
    near.clone(&[])?.must_pass()
}
