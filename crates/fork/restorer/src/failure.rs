//! Steps of a start that failed, and how the agent learns of them.

use farfork_plan::protocol::{Status, StatusKind};
use farfork_plan::{Op, What};

use crate::call::{self, Errno};
use crate::shared::SHARED;
use crate::stages;

/// A step that failed.
pub struct Failure {
    what: u16,
    detail: u32,
    errno: Errno,
}

impl Failure {
    /// A failure of an op.
    pub fn of_op(op: &Op, errno: Errno) -> Failure {
        Failure { what: op.what, detail: op.detail, errno }
    }

    /// A failure of `what`, outside any op.
    pub fn new(what: What, errno: Errno) -> Failure {
        Failure { what: what as u16, detail: 0, errno }
    }

    /// Reports the failure to the agent on the status socket and ends this process.
    pub fn report(&self, status_fd: i32) -> ! {
        self.send(StatusKind::Failed, status_fd);
        // SAFETY: set before the first op is run.
        if unsafe { SHARED.get() }.is_family {
            stages::fail();
        }
        call::exit(call::EXIT_REPORTED)
    }

    /// Reports the failure of an op that the clone can do without.
    pub fn warn(&self, status_fd: i32) {
        self.send(StatusKind::Warned, status_fd);
    }

    fn send(&self, kind: StatusKind, status_fd: i32) {
        let status = Status {
            kind: kind as u32,
            what: u32::from(self.what),
            value: i64::from(self.errno.0),
            detail: u64::from(self.detail),
            ..Status::default()
        };
        let _ = call::send(status_fd, &status);
    }
}
