//! CRIU, where the machine has one that works.

use std::process::Command;

use super::{Lane, metric};
use crate::samples::Samples;

const OLDEST_MAJOR: u32 = 4;

/// A row for each subject that says why CRIU was not measured.
pub fn note(lanes: &[Lane], samples: &mut Samples) -> Option<String> {
    let note = match find() {
        Err(reason) => format!("no CRIU from version {OLDEST_MAJOR} on works here: {reason}"),
        Ok(version) => format!("CRIU {version} works here but this benchmark cannot drive it yet"),
    };
    for lane in lanes {
        samples.note(&lane.subject.case("criu"), metric::RESPONSE, "us", &note);
    }
    Some(format!("Not compared with CRIU: {note}."))
}

fn find() -> Result<String, String> {
    let text = output(&["--version"])?;
    let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
    let version = version.ok_or("criu --version names no version")?;
    let major: Option<u32> = version.split('.').next().and_then(|major| major.parse().ok());
    if major.is_none_or(|major| major < OLDEST_MAJOR) {
        return Err(format!("CRIU {version} is older"));
    }
    output(&["check"])?;
    Ok(version.to_owned())
}

fn output(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("criu")
        .args(arguments)
        .output()
        .map_err(|_| "the command criu is not installed".to_owned())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("criu {} fails", arguments.join(" ")))
}
