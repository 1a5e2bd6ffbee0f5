//! The machine a benchmark ran on.

use std::fs;

use serde::Serialize;

/// What a reader needs for comparing figures.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// `uname -r`.
    pub kernel: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Load averages over 1, 5 and 15 minutes at the start.
    pub load: [f64; 3],
    /// Transparent huge pages of anonymous memory: `always`, `madvise` or `never`.
    pub huge_pages: String,
    /// The hypervisor. Empty if there is none.
    pub virtualised: String,
}

impl Machine {
    /// Describes this machine.
    pub fn this() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let is_guest = cpuinfo.lines().any(|l| l.starts_with("flags") && l.contains(" hypervisor"));
        Machine {
            cpu: field(&cpuinfo, "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_bytes: memory("MemTotal:"),
            load: load(&read("/proc/loadavg")),
            huge_pages: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            virtualised: if is_guest { hypervisor() } else { String::new() },
        }
    }

    /// One line.
    pub fn sentence(&self) -> String {
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        let guest = if self.virtualised.is_empty() { "" } else { ", virtual machine" };
        format!(
            "{}, {} cores{guest}, {gib:.1} GiB, Linux {}, huge pages {}, load {:.2}",
            self.cpu, self.cores, self.kernel, self.huge_pages, self.load[0]
        )
    }
}

/// Bytes of memory that are available without swapping.
pub fn available_bytes() -> u64 {
    farfork_sys::proc::available_bytes().unwrap_or(0)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field(text: &str, key: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(key));
    line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim()).into()
}

fn memory(key: &str) -> u64 {
    let text = read("/proc/meminfo");
    let rest = text.lines().find_map(|line| line.strip_prefix(key));
    rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0) << 10
}

fn load(text: &str) -> [f64; 3] {
    let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or(0.0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0.0))
}

/// The word in brackets.
fn chosen(text: &str) -> String {
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    word.map_or("unknown", |(word, _)| word).to_owned()
}

fn hypervisor() -> String {
    let name = read("/sys/class/dmi/id/sys_vendor");
    if name.trim().is_empty() { "unnamed".to_owned() } else { name.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::this();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 28, "{machine:?}");
        assert!(machine.sentence().contains(&machine.kernel));
        assert!(available_bytes() > 0);
    }

    #[test]
    fn the_kernel_s_formats_are_read() {
        assert_eq!(load("0.25 1.50 2.00 1/100 42\n"), [0.25, 1.5, 2.0]);
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen(""), "unknown");
        assert_eq!(field("model name\t: A: B\n", "model name"), "A: B");
    }
}
