//! Giving a thread the parent's ids, capabilities and securebits.
//!
//! ```text
//!  inheritable       where they go beyond the bounding set, which limits what can be added later
//!  bounding set      drop by drop
//!  ids               with KEEP_CAPS, or a change from root would take the capabilities away
//!  first capset      permitted and CAP_SETPCAP, only where ambient ones or securebits follow
//!  ambient, then securebits, which may forbid the former
//!  capset            what the parent had
//! ```

use farfork_plan::{Op, What};

use super::arena::Arena;
use crate::model::Credentials;

const INHERITABLE: usize = 0;
const PERMITTED: usize = 1;
const EFFECTIVE: usize = 2;
const BOUNDING: usize = 3;
const AMBIENT: usize = 4;
/// `CAP_CHECKPOINT_RESTORE`.
const LAST_CAPABILITY: u64 = 40;
const ALL: u64 = (1 << (LAST_CAPABILITY + 1)) - 1;
/// What the steps themselves need: `CAP_SETGID`, `CAP_SETUID`, `CAP_SETPCAP`.
const NEEDED: u64 = 1 << 6 | 1 << 7 | 1 << 8;
const SETPCAP: u64 = 1 << 8;
const CAPABILITY_VERSION_3: u64 = 0x2008_0522;
/// `SECBIT_KEEP_CAPS`, the only one of the bits that needs no capability.
const KEEP_CAPS: u32 = 1 << 4;

/// Ops that give the calling thread `credentials`.
pub fn ops(credentials: &Credentials, arena: &mut Arena) -> Vec<Op> {
    let sets = &credentials.capabilities;
    let mut ops = Vec::new();
    if sets[INHERITABLE] & !sets[BOUNDING] != 0 {
        let kept = sets[PERMITTED] | NEEDED;
        ops.push(capset(sets[INHERITABLE], kept, kept, arena));
    }
    ops.extend(each(ALL & !sets[BOUNDING]).map(|bit| prctl(libc::PR_CAPBSET_DROP, bit, 0)));
    if credentials.uids != [0; 4] || credentials.gids != [0; 4] || !credentials.groups.is_empty() {
        ops.push(prctl(libc::PR_SET_KEEPCAPS, 1, 0));
        ops.extend(ids(credentials, arena));
    } else {
        // None, whichever the agent or the first thread has.
        ops.push(call(libc::SYS_setgroups, &[0, 0]));
    }
    let securebits = credentials.securebits & !KEEP_CAPS;
    if sets[AMBIENT] != 0 || securebits != 0 {
        let held = sets[PERMITTED] | SETPCAP;
        ops.push(capset(sets[INHERITABLE], held, held, arena));
        let raise = libc::PR_CAP_AMBIENT_RAISE as u64;
        ops.extend(each(sets[AMBIENT]).map(|bit| prctl(libc::PR_CAP_AMBIENT, raise, bit)));
    }
    if securebits != 0 {
        ops.push(prctl(libc::PR_SET_SECUREBITS, credentials.securebits.into(), 0));
    }
    ops.push(capset(sets[INHERITABLE], sets[PERMITTED], sets[EFFECTIVE], arena));
    if securebits == 0 {
        let keeps = u64::from(credentials.securebits & KEEP_CAPS != 0);
        ops.push(prctl(libc::PR_SET_KEEPCAPS, keeps, 0));
    }
    ops
}

fn each(set: u64) -> impl Iterator<Item = u64> {
    (0..=LAST_CAPABILITY).filter(move |bit| set >> bit & 1 != 0)
}

fn call(nr: libc::c_long, args: &[u64]) -> Op {
    Op::new(What::Credentials, nr as u32, args)
}

fn prctl(option: libc::c_int, second: u64, third: u64) -> Op {
    call(libc::SYS_prctl, &[option as u64, second, third, 0, 0])
}

fn ids(credentials: &Credentials, arena: &mut Arena) -> [Op; 5] {
    let groups: Vec<u8> = credentials.groups.iter().flat_map(|g| g.to_le_bytes()).collect();
    let groups_at = arena.put(&groups, 8);
    let [uid, euid, suid, fsuid] = credentials.uids.map(u64::from);
    let [gid, egid, sgid, fsgid] = credentials.gids.map(u64::from);
    [
        call(libc::SYS_setgroups, &[credentials.groups.len() as u64, groups_at]),
        call(libc::SYS_setresgid, &[gid, egid, sgid]),
        call(libc::SYS_setfsgid, &[fsgid]),
        call(libc::SYS_setresuid, &[uid, euid, suid]),
        call(libc::SYS_setfsuid, &[fsuid]),
    ]
}

fn capset(inheritable: u64, permitted: u64, effective: u64, arena: &mut Arena) -> Op {
    let header = arena.words(&[CAPABILITY_VERSION_3]);
    let low = |set: u64| set & 0xffff_ffff;
    let pack = |a: u64, b: u64| a | b << 32;
    let data = arena.words(&[
        pack(low(effective), low(permitted)),
        pack(low(inheritable), effective >> 32),
        pack(permitted >> 32, inheritable >> 32),
    ]);
    call(libc::SYS_capset, &[header, data])
}
