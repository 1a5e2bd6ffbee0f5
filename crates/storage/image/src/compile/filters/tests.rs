//! Which thread installs filters, by what threads have and what filters let them do.

use super::*;

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0001;
const NUMBER: u32 = 0;
const FIRST_ARGUMENT: u32 = 16;
const SECOND_ARGUMENT: u32 = 24;

/// A filter that looks at the word at `offset` and refuses where it is one of `values`.
fn refusing(offset: u32, values: &[u32]) -> SeccompFilter {
    let step =
        |code: u64, if_true: usize, k: u32| code | (if_true as u64) << 16 | u64::from(k) << 32;
    let mut instructions = vec![step(0x20, 0, offset)];
    let last = values.len();
    for (index, value) in values.iter().enumerate() {
        instructions.push(step(0x15, last - index, *value));
    }
    instructions.extend([step(0x06, 0, ALLOW), step(0x06, 0, ERRNO)]);
    SeccompFilter { instructions, logs: false, by_prctl: false }
}

fn of_number(number: i64) -> SeccompFilter {
    refusing(NUMBER, &[number as u32])
}

fn thread(filters: &[SeccompFilter]) -> Thread {
    Thread { filters: filters.to_vec(), no_new_privs: true, ..Thread::default() }
}

fn all_with(filters: &[SeccompFilter]) -> By {
    by(&[thread(filters), thread(filters), thread(filters)])
}

#[test]
fn the_first_thread_installs_what_all_have() {
    let harmless = of_number(libc::SYS_getpgid);
    assert_eq!(all_with(std::slice::from_ref(&harmless)), By::First);
    assert_eq!(all_with(&[harmless.clone(), of_number(libc::SYS_getsid)]), By::First);
    // Everything but what is needed is refused.
    let others = [libc::SYS_seccomp, libc::SYS_sched_setattr, libc::SYS_restart_syscall];
    let strict = refusing(NUMBER, &others.map(|number| number as u32));
    assert_eq!(all_with(&[harmless.clone(), strict]), By::First);
    assert_eq!(by(&[thread(std::slice::from_ref(&harmless))]), By::Each, "a single thread");
    assert_eq!(all_with(&[]), By::Each, "no filters");
    assert_eq!(by(&[]), By::Each);
}

#[test]
fn each_installs_its_own_where_they_differ() {
    let (one, other) = (of_number(libc::SYS_getpgid), of_number(libc::SYS_getsid));
    let of_one = || thread(std::slice::from_ref(&one));
    assert_eq!(by(&[of_one(), of_one(), thread(&[])]), By::Each);
    assert_eq!(by(&[thread(&[]), of_one(), of_one()]), By::Each);
    assert_eq!(by(&[of_one(), thread(&[one.clone(), other.clone()])]), By::Each);
    assert_eq!(by(&[of_one(), thread(std::slice::from_ref(&other))]), By::Each);
    let logging = SeccompFilter { logs: true, ..one.clone() };
    assert_eq!(by(&[of_one(), thread(&[logging])]), By::Each);
}

#[test]
fn no_thread_is_given_what_the_first_has_given_up() {
    let with = |no_new_privs| Thread { no_new_privs, ..thread(&[of_number(libc::SYS_getpgid)]) };
    assert_eq!(by(&[with(true), with(true), with(false)]), By::Each);
    assert_eq!(by(&[with(false), with(true), with(false)]), By::First);
    assert_eq!(by(&[with(false), with(false)]), By::First);
}

#[test]
fn each_installs_its_own_where_waiting_may_be_refused() {
    let harmless = of_number(libc::SYS_getpgid);
    let wait = FUTEX_WAIT_PRIVATE as u32;
    for hindering in [
        of_number(libc::SYS_futex),
        refusing(SECOND_ARGUMENT, &[wait]),
        refusing(SECOND_ARGUMENT, &[FUTEX_WAKE_PRIVATE as u32]),
        refusing(FIRST_ARGUMENT, &[1]), // which may be the address
    ] {
        assert_eq!(all_with(&[hindering.clone(), harmless.clone()]), By::Each);
        assert_eq!(all_with(&[harmless.clone(), hindering]), By::Each);
    }
    assert_eq!(all_with(&[refusing(SECOND_ARGUMENT, &[wait + 2])]), By::First);
}

#[test]
fn each_installs_its_own_where_the_call_for_all_is_refused() {
    let harmless = of_number(libc::SYS_getpgid);
    let by_prctl = SeccompFilter { by_prctl: true, ..harmless.clone() };
    let forbids = of_number(libc::SYS_seccomp);
    assert_eq!(all_with(&[forbids.clone(), by_prctl.clone()]), By::Each);
    assert_eq!(all_with(&[harmless.clone(), by_prctl]), By::First, "seccomp does as well");
    assert_eq!(all_with(&[harmless.clone(), forbids]), By::First, "nothing comes after it");
    let forbids_flags = refusing(SECOND_ARGUMENT, &[17]);
    assert_eq!(all_with(&[forbids_flags, harmless]), By::Each);
}

#[test]
fn ops_say_who_installs() {
    let filters = [
        of_number(libc::SYS_getpgid),
        SeccompFilter { logs: true, ..of_number(libc::SYS_getsid) },
        SeccompFilter { by_prctl: true, ..of_number(libc::SYS_getppid) },
    ];
    let thread = thread(&filters);
    let seen = |by| -> Vec<(u32, u64)> {
        ops(&thread, by, &mut Arena::new()).iter().map(|op| (op.nr, op.args[1])).collect()
    };
    let (seccomp, prctl) = (libc::SYS_seccomp as u32, libc::SYS_prctl as u32);
    assert_eq!(seen(By::Each), [(seccomp, 0), (seccomp, 2), (prctl, SECCOMP_MODE_FILTER)]);
    assert_eq!(seen(By::First), [(seccomp, 17), (seccomp, 19), (seccomp, 17)]);
}
