//! What a thread has hardened against an attacker who takes it over. The kernel shows it only to
//! the thread itself.

use farfork_image::model::Hardening;

use crate::error::CheckpointError;
use crate::inject::{Injector, RemoteThread};

const PR_GET_SPECULATION_CTRL: u64 = 52;
const ARCH_GET_CPUID: u64 = 0x1011;
const PR_MCE_KILL_DEFAULT: i64 = 2;
/// `PR_SPEC_PRCTL`: a thread may choose.
const MAY_CHOOSE: i64 = 1;
const ENABLED: i64 = 2;
const DISABLED: i64 = 4;
/// Speculations, and what is chosen for them at first: store bypass, indirect branches, and the
/// flush of the first cache.
const SPECULATIONS: [(u32, i64); 3] = [(0, ENABLED), (1, ENABLED), (2, DISABLED)];

/// Asks `thread`; what the kernel or the processor does not know is not set.
pub fn collect(
    injector: &Injector<'_>,
    thread: &RemoteThread<'_>,
) -> Result<Hardening, CheckpointError> {
    let prctl = |option, second| thread.try_call(libc::SYS_prctl, [option, second, 0, 0, 0, 0]);
    let mut hardening = Hardening::default();
    for (speculation, default) in SPECULATIONS {
        let state = prctl(PR_GET_SPECULATION_CTRL, speculation.into())?;
        let chosen = state & !MAY_CHOOSE;
        if state > 0 && state & MAY_CHOOSE != 0 && chosen != default {
            hardening.speculation.push((speculation, chosen as u32));
        }
    }
    if prctl(libc::PR_GET_TSC as u64, injector.scratch())? == 0 {
        let [mode] = injector.words()?;
        hardening.hides_tsc = mode as u32 == libc::PR_TSC_SIGSEGV as u32;
    }
    let cpuid = thread.try_call(libc::SYS_arch_prctl, [ARCH_GET_CPUID, 0, 0, 0, 0, 0])?;
    hardening.hides_cpuid = cpuid == 0;
    let policy = prctl(libc::PR_MCE_KILL_GET as u64, 0)?;
    let is_chosen = policy >= 0 && policy != PR_MCE_KILL_DEFAULT;
    hardening.memory_failure = is_chosen.then_some(policy as u32);
    Ok(hardening)
}
