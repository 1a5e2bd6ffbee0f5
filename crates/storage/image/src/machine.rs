//! What an image was made on, and whether it runs here.

use std::fs;
use std::sync::OnceLock;

use farfork_sys::xstate;

use crate::model::MadeOn;

/// This machine, without the vDSO and the clocks, which differ by process. It is looked at once.
pub fn this() -> &'static MadeOn {
    static THIS: OnceLock<MadeOn> = OnceLock::new();
    THIS.get_or_init(look)
}

/// Which boot of which machine this is.
pub fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    })
}

fn look() -> MadeOn {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let flags = cpu.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or("");
    MadeOn {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        farfork: env!("CARGO_PKG_VERSION").to_owned(),
        xcr0: xstate::enabled(),
        cpu_flags: flags
            .trim_start_matches([' ', '\t', ':'])
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        ..MadeOn::default()
    }
}

/// Why an image made on `made_on` cannot run on `here`, in words; nothing if it can.
pub fn obstacle(made_on: &MadeOn, here: &MadeOn) -> Option<String> {
    let missing: Vec<&str> = made_on
        .cpu_flags
        .iter()
        .filter(|flag| is_for_programs(flag) && !here.cpu_flags.contains(flag))
        .map(String::as_str)
        .collect();
    if !missing.is_empty() {
        return Some(format!("this processor lacks {}", missing.join(", ")));
    }
    if made_on.xcr0 & !xstate::AMX & !here.xcr0 != 0 {
        return Some("this processor saves fewer vector registers".to_owned());
    }
    (made_on.kernel != here.kernel)
        .then(|| format!("it was made on Linux {}, this is Linux {}", made_on.kernel, here.kernel))
}

/// Features that programs choose code by; the rest only matters to kernels.
fn is_for_programs(flag: &str) -> bool {
    const PREFIXES: [&str; 18] = [
        "sse", "ssse", "avx", "amx", "aes", "sha", "bmi", "fma", "f16c", "adx", "gfni", "vaes",
        "vpclmul", "pclmul", "movbe", "popcnt", "lzcnt", "abm",
    ];
    const NAMES: [&str; 8] =
        ["erms", "fsrm", "rdrand", "rdseed", "rdpid", "fsgsbase", "clflushopt", "pku"];
    PREFIXES.iter().any(|prefix| flag.starts_with(prefix)) || NAMES.contains(&flag)
}
