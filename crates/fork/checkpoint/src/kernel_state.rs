//! State that the kernel keeps for a process or thread, that a clone would not have, and that its memory does
//! not show: segments of its own, and keys.

use farfork_sys::keys;

use crate::error::CheckpointError;
use crate::inject::{Injector, RemoteThread};
use crate::refuse::{Refusals, causes};

/// `modify_ldt` for reading.
const READ_LDT: u64 = 0;
/// Bytes of one entry.
const LDT_ENTRY_BYTES: u64 = 8;
const KEYCTL_GET_KEYRING_ID: u64 = 0;
const KEYCTL_DESCRIBE: u64 = 6;
const KEYCTL_READ: u64 = 11;
const KEY_SPEC_THREAD_KEYRING: i32 = -1;
const KEY_SPEC_PROCESS_KEYRING: i32 = -2;
const KEY_SPEC_SESSION_KEYRING: i32 = -3;
/// Keys of a session that are looked at: a session of more has been used.
const MOST_KEYS: usize = 32;
/// Words of a key's description that are looked at.
const DESCRIPTION_WORDS: usize = 32;
/// The key that systemd gives each service.
const INVOCATION: &str = "invocation_id";

/// Refuses what belongs to the process as a whole; asks its first thread.
pub fn check_process(
    injector: &Injector<'_>,
    leader: &RemoteThread<'_>,
    refusals: &mut Refusals,
) -> Result<(), CheckpointError> {
    let at = injector.scratch();
    let ldt = [READ_LDT, at, LDT_ENTRY_BYTES, 0, 0, 0];
    if leader.try_call(libc::SYS_modify_ldt, ldt)? > 0 {
        refusals.add("local descriptor table", causes::process::LDT);
    }
    if keyring(leader, KEY_SPEC_PROCESS_KEYRING)? > 0 {
        refusals.add("process keyring", causes::process::KEYRING);
    }
    if has_session_keys(injector, leader)? {
        refusals.add("session keyring", causes::process::SESSION_KEYS);
    }
    Ok(())
}

/// Refuses what belongs to one thread.
pub fn check_thread(
    thread: &RemoteThread<'_>,
    object: &str,
    refusals: &mut Refusals,
) -> Result<(), CheckpointError> {
    if keyring(thread, KEY_SPEC_THREAD_KEYRING)? > 0 {
        refusals.add(format!("{object}: thread keyring"), causes::process::KEYRING);
    }
    Ok(())
}

/// The id of a keyring, not made if missing; an error of the kernel means that there is none.
fn keyring(thread: &RemoteThread<'_>, which: i32) -> Result<i64, CheckpointError> {
    let args = [KEYCTL_GET_KEYRING_ID, which as u64, 0, 0, 0, 0];
    thread.try_call(libc::SYS_keyctl, args)
}

/// Whether the process's session has keys besides links to keyrings of its user, and what systemd puts there.
fn has_session_keys(
    injector: &Injector<'_>,
    leader: &RemoteThread<'_>,
) -> Result<bool, CheckpointError> {
    let own = keys::own_session();
    if own.is_some() && keyring(leader, KEY_SPEC_SESSION_KEYRING)? == own.unwrap_or_default() {
        return Ok(false); // an agent that farfork starts is in it, too
    }
    let (at, ring) = (injector.scratch(), KEY_SPEC_SESSION_KEYRING as u64);
    let read = [KEYCTL_READ, ring, at, 4 * MOST_KEYS as u64, 0, 0];
    let bytes = leader.try_call(libc::SYS_keyctl, read)?.max(0) as usize;
    if bytes > 4 * MOST_KEYS {
        return Ok(true);
    }
    let words: [u64; MOST_KEYS / 2] = injector.words()?;
    let keys = words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
    for key in keys.take(bytes / 4).collect::<Vec<_>>() {
        let room = 8 * DESCRIPTION_WORDS as u64;
        let describe = [KEYCTL_DESCRIBE, key.into(), at, room, 0, 0];
        let length = leader.try_call(libc::SYS_keyctl, describe)?;
        if !(1..=room as i64).contains(&length) {
            continue; // of another user, or gone
        }
        let words: [u64; DESCRIPTION_WORDS] = injector.words()?;
        let text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if is_own_key(&String::from_utf8_lossy(&text[..length as usize - 1])) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a key is one that a program has put there: `type;uid;gid;permissions;description`.
fn is_own_key(description: &str) -> bool {
    let mut fields = description.splitn(5, ';');
    let (kind, name) = (fields.next().unwrap_or(""), fields.nth(3).unwrap_or(""));
    kind != "keyring" && name != INVOCATION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_programs_are_told_from_those_of_sessions() {
        assert!(is_own_key("user;0;0;3f010000;secret"));
        assert!(is_own_key("logon;1000;1000;3f010000;fscrypt:0123;4"));
        assert!(!is_own_key("keyring;1000;-1;1f3f0000;_uid.1000"));
        assert!(!is_own_key("user;0;0;3f010000;invocation_id"));
    }
}
