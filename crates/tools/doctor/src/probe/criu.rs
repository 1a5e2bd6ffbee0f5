//! CRIU, for comparisons in benchmarks.

use super::{Finding, Probe, while_doing};
use crate::Group;
use std::process::Command;

pub(super) const PROBES: &[Probe] = &[Probe {
    id: "criu",
    group: Group::Later,
    needed_for: "comparing with CRIU in benchmarks; farfork itself never calls it",
    advice: "run setup/criu.sh, or build CRIU 4 or later, if you want the comparison",
    look: criu,
}];

const OLDEST_MAJOR: u32 = 4;

fn criu() -> Finding {
    let version = output(&["--version"])?;
    let version = version.lines().find_map(|line| line.strip_prefix("Version: "));
    let version = version.ok_or("criu --version prints no version")?;
    let major: Option<u32> = version.split('.').next().and_then(|major| major.parse().ok());
    if major.is_none_or(|major| major < OLDEST_MAJOR) {
        return Err(format!("CRIU {version} is older than {OLDEST_MAJOR}"));
    }
    output(&["check"])?;
    Ok(format!("CRIU {version} passes criu check"))
}

fn output(arguments: &[&str]) -> Result<String, String> {
    let name = format!("criu {}", arguments.join(" "));
    let output = Command::new("criu").args(arguments).output().map_err(while_doing(&name))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{name}: {}",
        complaint.lines().last().unwrap_or("failed without a message").trim()
    ))
}
