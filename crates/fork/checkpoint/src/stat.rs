//! `/proc/PID/stat`.

use farfork_sys::proc;

use crate::error::CheckpointError;

/// Its numbers; a person's name for the process, which may hold anything, is left out.
pub struct Stat(Vec<i64>);

/// Fields as proc(5) numbers them.
pub const PARENT: usize = 4;
pub const GROUP: usize = 5;
pub const SESSION: usize = 6;
pub const TERMINAL: usize = 7;
pub const EXIT_SIGNAL: usize = 38;
pub const WAIT_STATUS: usize = 52;

impl Stat {
    /// Reads that of process `pid`, which may have ended.
    pub fn read(pid: i32) -> Result<Stat, CheckpointError> {
        let text = proc::text(format!("/proc/{pid}/stat"));
        text.ok()
            .and_then(|text| Stat::parse(&text))
            .ok_or(CheckpointError::Proc { pid, what: "stat" })
    }

    fn parse(text: &str) -> Option<Stat> {
        let (_, after_name) = text.rsplit_once(") ")?;
        // Limits go beyond what an i64 holds; they are not needed here.
        let number = |field: &str| field.trim().parse().unwrap_or(0);
        Some(Stat(after_name.split(' ').map(number).collect()))
    }

    /// The field with this number; the state, which is a letter, is number 3 and reads as 0.
    pub fn field(&self, number: usize) -> i64 {
        self.0.get(number - 3).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_what_follows_it() {
        let stat = Stat::parse("77 (a) 1 2 3 (b) S 1 70 60 34816 70 4194560").unwrap();
        let known = [GROUP, SESSION, TERMINAL, EXIT_SIGNAL].map(|field| stat.field(field));
        assert_eq!(known, [70, 60, 34816, 0]);
    }
}
