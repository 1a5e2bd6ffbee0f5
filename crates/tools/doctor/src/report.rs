//! The report, as text and as JSON.

use serde::Serialize;
use std::io::{self, Write};

/// How much farfork needs a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Checkpoint and restore need it.
    Required,
    /// Without it farfork is slower, or refuses some processes.
    Better,
    /// Ghosts need it.
    Ghosts,
    /// Without it users without root can do less.
    Users,
    /// Other pool media, far memory and comparisons.
    Later,
}

impl Group {
    const ALL: [Group; 5] =
        [Group::Required, Group::Better, Group::Ghosts, Group::Users, Group::Later];

    fn title(self) -> &'static str {
        match self {
            Group::Required => "Required for checkpoint and restore",
            Group::Better => "Better with",
            Group::Ghosts => "For ghosts",
            Group::Users => "For users without root",
            Group::Later => "For far memory, virtual machines, other media and comparisons",
        }
    }
}

/// One thing a machine can or cannot do.
#[derive(Clone, Debug, Serialize)]
pub struct Capability {
    /// Stable name, for programs.
    pub id: &'static str,
    /// How much farfork needs it.
    pub group: Group,
    /// Whether this machine, as seen by this process, can do it.
    pub available: bool,
    /// What the probe found. If `available` is false, why not.
    pub found: String,
    /// What farfork uses it for.
    pub needed_for: &'static str,
    /// What the user can do. Absent if there is nothing to do.
    pub advice: Option<&'static str>,
}

/// The result of [`examine`](crate::examine).
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of farfork.
    pub version: &'static str,
    /// Kernel, architecture and processor, as text.
    pub machine: String,
    /// Whether every required capability is available.
    pub ready: bool,
    /// Every capability, in the order of the groups.
    pub capabilities: Vec<Capability>,
}

impl Report {
    pub(crate) fn from_capabilities(machine: String, mut capabilities: Vec<Capability>) -> Self {
        capabilities.sort_by_key(|capability| capability.group as u8);
        let ready = capabilities.iter().all(|c| c.available || c.group != Group::Required);
        Report { version: env!("CARGO_PKG_VERSION"), machine, ready, capabilities }
    }

    /// Writes the report as text.
    pub fn render(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.machine)?;
        for group in Group::ALL {
            writeln!(out, "\n{}", group.title())?;
            for capability in self.capabilities.iter().filter(|c| c.group == group) {
                capability.render(out)?;
            }
        }
        writeln!(out, "\n{}", self.verdict())
    }

    fn verdict(&self) -> String {
        let missing: Vec<_> = self
            .capabilities
            .iter()
            .filter(|c| c.group == Group::Required && !c.available)
            .map(|c| c.id)
            .collect();
        if self.ready {
            "This machine can checkpoint and restore.".to_owned()
        } else {
            format!("This machine cannot checkpoint and restore: no {}.", missing.join(", no "))
        }
    }
}

impl Capability {
    fn render(&self, out: &mut impl Write) -> io::Result<()> {
        let answer = if self.available { "yes" } else { "no" };
        writeln!(out, "  {answer:<4}{:<27}{}", self.id, self.found)?;
        if !self.available {
            writeln!(out, "{:33}needed for {}", "", self.needed_for)?;
        }
        if let Some(advice) = self.advice {
            writeln!(out, "{:33}what to do: {advice}", "")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability(id: &'static str, group: Group, available: bool) -> Capability {
        let advice = (!available).then_some("run as root");
        Capability { id, group, available, found: "seen".into(), needed_for: "freezing", advice }
    }

    #[test]
    fn ready_if_every_required_capability_is_available() {
        let lacking_extras = vec![
            capability("swap", Group::Later, false),
            capability("speed", Group::Better, false),
            capability("ptrace", Group::Required, true),
        ];
        let report = Report::from_capabilities("Linux".into(), lacking_extras);
        assert!(report.ready);
        assert_eq!(report.capabilities[0].id, "ptrace", "required capabilities come first");
    }

    #[test]
    fn a_missing_required_capability_is_named_with_reason_and_advice() {
        let report = Report::from_capabilities(
            "Linux".into(),
            vec![capability("ptrace", Group::Required, false)],
        );
        assert!(!report.ready);
        let mut text = Vec::new();
        report.render(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for part in ["no  ptrace", "seen", "needed for freezing", "run as root", "cannot"] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn json_keeps_its_shape() {
        let report = Report::from_capabilities(
            "Linux".into(),
            vec![capability("kcmp", Group::Required, false)],
        );
        let expected = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "machine": "Linux",
            "ready": false,
            "capabilities": [{
                "id": "kcmp",
                "group": "required",
                "available": false,
                "found": "seen",
                "needed_for": "freezing",
                "advice": "run as root",
            }],
        });
        assert_eq!(serde_json::to_value(&report).unwrap(), expected);
    }
}
