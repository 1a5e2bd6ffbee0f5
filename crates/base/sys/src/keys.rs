//! Keyrings of the kernel.
#![allow(unsafe_code)] // reason: keyctl has no safe wrapper

const KEYCTL_GET_KEYRING_ID: libc::c_long = 0;
const KEY_SPEC_SESSION_KEYRING: libc::c_long = -3;

/// The id of the keyring of this process's session, if it can be found out.
pub fn own_session() -> Option<i64> {
    let (asked, make) = (KEY_SPEC_SESSION_KEYRING, 0 as libc::c_long);
    // SAFETY: the call has numbers for arguments, and makes nothing.
    let id = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_GET_KEYRING_ID, asked, make) };
    (id > 0).then_some(id)
}
