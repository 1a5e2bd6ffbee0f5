//! Kernel and processor.

use super::{Finding, Probe, raw, setting};
use crate::Group;
use std::fs::File;
use std::os::unix::fs::FileExt;

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "x86_64_linux",
        group: Group::Required,
        needed_for: "saved registers and the layout of an image",
        advice: "use Linux 6.11 or later on x86-64",
        look: x86_64_linux,
    },
    Probe {
        id: "xsave",
        group: Group::Required,
        needed_for: "restoring vector registers through a signal frame",
        advice: "use a processor, or a virtual machine's processor model, with XSAVE",
        look: xsave,
    },
    Probe {
        id: "avx512",
        group: Group::Better,
        needed_for: "images whose process was started on a machine with AVX-512",
        advice: "checkpoint and restore on machines with the same processor features",
        look: || cpu_features(&["avx512f", "avx512bw", "avx512vl"]),
    },
    Probe {
        id: "amx",
        group: Group::Better,
        needed_for: "images whose process was started on a machine with AMX",
        advice: "checkpoint and restore on machines with the same processor features",
        look: || cpu_features(&["amx_tile"]),
    },
    Probe {
        id: "protection_keys",
        group: Group::Later,
        needed_for: "keeping stray stores off the tables of a region of objects, which farfork does not do yet",
        advice: "nothing: regions work without them",
        look: || cpu_features(&["pku"]),
    },
    Probe {
        id: "vdso_getrandom",
        group: Group::Better,
        needed_for: "fast random numbers in user space; clones get a fresh state",
        advice: "nothing: without it programs use the system call",
        look: vdso_getrandom,
    },
];

/// Kernel, architecture and processor, as text.
pub(crate) fn name() -> String {
    let kernel = rustix::system::uname();
    let cpu = cpuinfo("model name").unwrap_or_else(|| "unknown processor".to_owned());
    format!(
        "{} {} {}, {cpu}",
        kernel.sysname().to_string_lossy(),
        kernel.release().to_string_lossy(),
        kernel.machine().to_string_lossy(),
    )
}

fn x86_64_linux() -> Finding {
    let kernel = rustix::system::uname();
    let (release, machine) = (kernel.release().to_string_lossy(), kernel.machine());
    if machine == c"x86_64" {
        Ok(format!("Linux {release} on x86-64"))
    } else {
        Err(format!("Linux {release} runs 64-bit programs on {machine:?}"))
    }
}

fn xsave() -> Finding {
    match raw::xsave_bytes() {
        0 => Err("the processor, or its virtual machine, hides XSAVE".into()),
        bytes => Ok(format!("an area of {bytes} bytes holds all vector registers")),
    }
}

fn cpu_features(wanted: &[&str]) -> Finding {
    let flags = cpuinfo("flags").ok_or("/proc/cpuinfo lists no flags")?;
    let has = |name: &&&str| flags.split_whitespace().any(|flag| flag == **name);
    let missing: Vec<_> = wanted.iter().filter(|name| !has(name)).copied().collect();
    if missing.is_empty() {
        Ok(format!("the processor has {}", wanted.join(", ")))
    } else {
        Err(format!("the processor lacks {}", missing.join(", ")))
    }
}

fn cpuinfo(key: &str) -> Option<String> {
    let text = setting("/proc/cpuinfo")?;
    let value = |line: &str| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    };
    text.lines().find_map(value)
}

fn vdso_getrandom() -> Finding {
    const SYMBOL: &[u8] = b"\0__vdso_getrandom\0";
    let vdso = read_vdso().map_err(super::while_doing("reading the vDSO"))?;
    if vdso.windows(SYMBOL.len()).any(|window| window == SYMBOL) {
        Ok("the vDSO has __vdso_getrandom".into())
    } else {
        Err("this kernel's vDSO has no __vdso_getrandom".into())
    }
}

fn read_vdso() -> std::io::Result<Vec<u8>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let range = maps.lines().find(|line| line.ends_with("[vdso]")).and_then(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    });
    let (start, end) = range.ok_or_else(|| std::io::Error::other("none is mapped"))?;
    let mut bytes = vec![0; (end - start) as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, start)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_whole_words() {
        assert!(cpu_features(&["fpu"]).is_ok());
        assert_eq!(cpu_features(&["fpu", "fp"]), Err("the processor lacks fp".into()));
    }

    #[test]
    fn the_vdso_is_an_elf_file() {
        assert!(read_vdso().unwrap().starts_with(b"\x7fELF"));
    }
}
