//! Region files that are damaged, cut, removed, or whose file system goes.
#![allow(unsafe_code)] // reason: forks

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use farfork::{Client, ObjectsError, Region, Timeout};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::operations::use_all;
use crate::stage::{BYTES, Clients, create, place, set_up};

fn flip(path: &Path, at: u64, bit: u8) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the region");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1 << bit], at).expect("flipped");
}

pub fn flipped_headers() -> Result<(), Failed> {
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let flips = prop::collection::hash_set((0..4096u64, 0..8u8), 1..4);
    TestRunner::new(config)
        .run(&flips, |flips| {
            let (_directory, path) = place();
            create(&path, false);
            flips.iter().for_each(|(at, bit)| flip(&path, *at, *bit));
            let error = Client::open(&path).expect_err("its header is damaged");
            let is_named = matches!(
                error,
                ObjectsError::DamagedHeader { .. }
                    | ObjectsError::NotARegion { .. }
                    | ObjectsError::OtherVersion { .. }
            );
            prop_assert!(is_named, "{error}");
            prop_assert!(Region::destroy(&path).is_err());
            flips.iter().for_each(|(at, bit)| flip(&path, *at, *bit));
            drop(Client::open(&path).expect("nothing else was changed"));
            Ok(())
        })
        .map_err(|failure| failure.to_string().into())
}

pub fn cut_or_removed() -> Result<(), Failed> {
    let (_directory, path) = place();
    create(&path, false);
    let Clients { mut clients, objects } = set_up::<farfork::Node>(&path);
    fs::remove_file(&path)?;
    use_all(&mut clients, &objects, true);
    assert!(clients[0].allocate(64).is_ok(), "clients go on without its name");
    let error = Client::open(&path).expect_err("there is none");
    assert!(error.to_string().contains("cannot open the region /"), "{error}");
    drop(clients);
    Region::create(&path, BYTES)?;
    let file = File::options().write(true).open(&path)?;
    for bytes in [0, 1, 4095, 4096, BYTES - 1, BYTES + 4096] {
        file.set_len(bytes)?;
        let error = Client::open(&path).expect_err("another size");
        let is_named =
            matches!(error, ObjectsError::Truncated { .. } | ObjectsError::NotARegion { .. });
        assert!(is_named, "{bytes}: {error}");
    }
    Ok(())
}

/// In a mount namespace of its own: a child shows it.
pub fn unmounted() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let at = directory.path().to_owned();
    let script = format!("mount -t tmpfs -o size=8M none {0} && exec sleep 60", at.display());
    let mut holder = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .stderr(Stdio::null())
        .spawn()?;
    let seen = Path::new("/proc").join(holder.id().to_string()).join("root");
    let inside = seen.join(at.strip_prefix("/")?);
    let outcome = in_mount(&inside, holder.id());
    holder.kill()?;
    holder.wait()?;
    outcome
}

fn in_mount(inside: &Path, holder: u32) -> Result<(), Failed> {
    let kind = || rustix::fs::statfs(inside).is_ok_and(|found| found.f_type == 0x0102_1994);
    if !(0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        kind()
    }) {
        println!("SKIPPED: mounting needs CAP_SYS_ADMIN");
        return Ok(());
    }
    let path = inside.join("region");
    create(&path, false);
    let mut client = Client::open(&path)?;
    let mailbox = client.mailbox("m", 4)?;
    let name = inside.strip_prefix(Path::new("/proc").join(holder.to_string()).join("root"))?;
    let unmount = |options: &[&str]| {
        Command::new("nsenter")
            .args(["--mount", "--target", &holder.to_string(), "umount"])
            .args(options)
            .arg(Path::new("/").join(name))
            .stderr(Stdio::null())
            .status()
    };
    assert!(!unmount(&[])?.success(), "a file system with a mapped region is busy");
    assert!(unmount(&["--lazy"])?.success(), "nothing hinders that");
    let error = Client::open(&path).expect_err("its file system is gone");
    assert!(error.to_string().contains("No such file"), "{error}");
    let object = client.allocate(64)?;
    assert!(client.send(mailbox, object, Timeout::Poll)?);
    assert_eq!(client.receive(mailbox, Timeout::Poll)?, Some(object));
    client.free(object)?;
    let check = client.region().check()?;
    assert!(check.is_clean(), "{check:?}");
    Ok(())
}

/// Role of the process that becomes another user.
pub const FOREIGN: &str = "foreign";
const OTHER: u32 = 65_534;

/// Ends as another user, in a process of its own.
pub fn open_foreign() {
    let (directory, path) = place();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    create(&path, false);
    let owner = rustix::process::geteuid();
    if !owner.is_root() {
        println!("SKIPPED: to become another user needs CAP_SETUID");
        return;
    }
    nix::unistd::setresuid(OTHER.into(), OTHER.into(), 0.into()).expect("another user");
    let error = Client::open(&path).expect_err("it is not this user's");
    assert!(matches!(error, ObjectsError::ForeignOwner { owner: 0, .. }), "{error}");
    assert!(error.to_string().contains("it belongs to user 0"), "{error}");
    assert_eq!(error.errno(), libc::EACCES);
    let error = Region::destroy(&path).expect_err("nor to be removed");
    assert!(matches!(error, ObjectsError::ForeignOwner { .. }), "{error}");
    // Back, to remove the directory.
    nix::unistd::setresuid(0.into(), 0.into(), 0.into()).expect("root");
}
