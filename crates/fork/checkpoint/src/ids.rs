//! Ids of an image's processes and of their groups: here, and in the innermost PID namespace.

/// The ids inside the PID namespace of the processes, by their ids here.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    /// Each process, by its place among the image's: its id here and inside.
    pub processes: Vec<(i32, u32)>,
    /// Each group that a clone has: its id here and inside.
    pub groups: Vec<(i32, u32)>,
}

impl Ids {
    /// Place of the process with this id here.
    pub fn member(&self, pid: i32) -> Option<u32> {
        let index = self.processes.iter().position(|(here, _)| *here == pid)?;
        Some(index as u32)
    }

    /// Id inside of a process.
    pub fn process(&self, pid: i32) -> Option<u32> {
        self.processes.iter().find(|(here, _)| *here == pid).map(|(_, inside)| *inside)
    }

    /// Id inside of a group.
    pub fn group(&self, group: i32) -> Option<u32> {
        self.groups.iter().find(|(here, _)| *here == group).map(|(_, inside)| *inside)
    }
}
