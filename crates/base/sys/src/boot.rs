//! Which boot of which machine this is.

use crate::proc;

/// A machine, from when it was started until it is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// Half of its id (`/etc/machine-id`); 0 where it cannot be read.
    pub machine: u64,
    /// Half of the kernel's random name for this boot; 0 where it cannot be read.
    pub boot: u64,
}

impl Boot {
    /// The present one.
    pub fn now() -> Boot {
        Boot { machine: id("/etc/machine-id"), boot: id("/proc/sys/kernel/random/boot_id") }
    }

    /// Whether whatever ran in `self` has ended: it was a boot of this machine, and not this one.
    pub fn is_over(self, now: Boot) -> bool {
        let is_told = [self.machine, self.boot, now.boot].iter().all(|id| *id != 0);
        is_told && self.machine == now.machine && self.boot != now.boot
    }
}

fn id(path: &str) -> u64 {
    let digits = proc::text(path).unwrap_or_default().trim().replace('-', "");
    u128::from_str_radix(&digits, 16).map_or(0, |id| (id >> 64) as u64 ^ id as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_boot_is_known_and_not_over() {
        let now = Boot::now();
        assert_ne!(now.boot, 0);
        assert_eq!(now, Boot::now());
        assert!(!now.is_over(now));
    }

    #[test]
    fn only_another_boot_of_the_same_machine_is_over() {
        let now = Boot { machine: 1, boot: 2 };
        for (then, is_over) in [((1, 3), true), ((4, 3), false), ((1, 2), false), ((1, 0), false)] {
            let (machine, boot) = then;
            assert_eq!(Boot { machine, boot }.is_over(now), is_over, "{then:?}");
        }
        let unknown = Boot { machine: 0, boot: 3 };
        assert!(!unknown.is_over(Boot { machine: 0, boot: 2 }));
    }
}
