//! The seccomp filter of functions.
//!
//! A function is an ordinary process of an unprivileged user. The filter denies calls that need
//! privileges, calls that reach other processes, calls that make namespaces, and calls that would
//! keep the process from being checkpointed. They fail as on a kernel that does not know them
//! (`ENOSYS`), for which libraries have fallbacks; so do calls of later kernels. Calls of other
//! architectures kill the process.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use libc::{
    AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET,
    CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS, ENOSYS, NETLINK_ROUTE, TIOCLINUX,
    TIOCSTI, c_long,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// The calls of Linux 6.10 on this architecture.
const KNOWN: [RangeInclusive<c_long>; 2] = [0..=libc::SYS_rseq, 424..=libc::SYS_mseal];

/// Calls that reach into other processes.
const PROCESSES: &[c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];
/// Calls that make or change namespaces, mounts and roots. A filter cannot see the flags of
/// `clone3`.
const NAMESPACES: &[c_long] = &[
    libc::SYS_clone3,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];
/// Calls on the machine as a whole: the kernel itself, devices, clocks, keys, accounts.
const MACHINE: &[c_long] = &[
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_lookup_dcookie,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_uselib,
    libc::SYS_nfsservctl,
    libc::SYS__sysctl,
    libc::SYS_sysfs,
    libc::SYS_ustat,
];
/// Calls that make what checkpoints do not carry.
const NOT_CARRIED: &[c_long] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    libc::SYS_memfd_secret,
];
/// A call of old that no library makes.
const UNUSED: &[c_long] = &[libc::SYS_remap_file_pages];
const DENIED: [&[c_long]; 5] = [PROCESSES, NAMESPACES, MACHINE, NOT_CARRIED, UNUSED];

/// The filter program for the kernel, an array of `struct sock_filter`, in base64.
pub fn filter() -> &'static str {
    static FILTER: LazyLock<String> = LazyLock::new(|| {
        let program =
            program().unwrap_or_else(|wrong| unreachable!("a filter of constants: {wrong}"));
        let bytes = program.iter().flat_map(|step| {
            let [c0, c1] = step.code.to_le_bytes();
            let [k0, k1, k2, k3] = step.k.to_le_bytes();
            [c0, c1, step.jt, step.jf, k0, k1, k2, k3]
        });
        STANDARD.encode(bytes.collect::<Vec<u8>>())
    });
    &FILTER
}

fn program() -> Result<BpfProgram, BackendError> {
    let denied: Vec<c_long> = DENIED.concat();
    let known = KNOWN.into_iter().flatten();
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        known.filter(|call| !denied.contains(call)).map(|call| (call, Vec::new())).collect();
    rules.extend([
        (libc::SYS_clone, vec![rule(&[is_not_set(0, NEW_NAMESPACES)])?]),
        (libc::SYS_socket, sockets()?),
        (libc::SYS_socketpair, vec![rule(&[is(0, AF_UNIX.unsigned_abs())])?]),
        // Only the current personality, and reading it.
        (libc::SYS_personality, vec![rule(&[is(0, 0)])?, rule(&[is(0, u32::MAX)])?]),
        // These insert input into a terminal.
        (libc::SYS_ioctl, vec![rule(&[is_not(1, TIOCSTI as u32), is_not(1, TIOCLINUX as u32)])?]),
    ]);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(ENOSYS.unsigned_abs()),
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?;
    filter.try_into()
}

const NEW_NAMESPACES: u32 = (CLONE_NEWNS
    | CLONE_NEWCGROUP
    | CLONE_NEWUTS
    | CLONE_NEWIPC
    | CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNET) as u32;

fn sockets() -> Result<Vec<SeccompRule>, BackendError> {
    let family = |family: i32| rule(&[is(0, family.unsigned_abs())]);
    // Libraries list network interfaces by it.
    let routes = [is(0, AF_NETLINK.unsigned_abs()), is(2, NETLINK_ROUTE.unsigned_abs())];
    Ok(vec![family(AF_UNIX)?, family(AF_INET)?, family(AF_INET6)?, rule(&routes)?])
}

/// A condition on an argument of 32 bits.
type Condition = (u8, Op, u32);

fn is(argument: u8, value: u32) -> Condition {
    (argument, Op::Eq, value)
}

fn is_not(argument: u8, value: u32) -> Condition {
    (argument, Op::Ne, value)
}

fn is_not_set(argument: u8, bits: u32) -> Condition {
    (argument, Op::MaskedEq(bits.into()), 0)
}

/// Allows a call for which all conditions hold.
fn rule(conditions: &[Condition]) -> Result<SeccompRule, BackendError> {
    let conditions = conditions.iter().map(|(argument, operator, value)| {
        SeccompCondition::new(*argument, Len::Dword, operator.clone(), u64::from(*value))
    });
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_denied_once_and_for_one_reason() {
        let mut denied: Vec<c_long> = DENIED.concat();
        let count = denied.len();
        denied.sort_unstable();
        denied.dedup();
        assert_eq!(denied.len(), count);
        let is_known = |call: &c_long| KNOWN.iter().any(|range| range.contains(call));
        assert!(denied.iter().all(is_known), "others are denied already");
    }

    #[test]
    fn the_program_is_valid_for_the_kernel() {
        let bytes = STANDARD.decode(filter()).unwrap();
        assert!(bytes.len().is_multiple_of(8) && bytes.len() / 8 <= 4096, "{}", bytes.len());
        // The last step of any filter of this kind is a return.
        assert_eq!(bytes[bytes.len() - 8], 0x06);
    }
}
