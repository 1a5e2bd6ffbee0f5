//! Whose images are whose, and how many of them, and of what size in all, a user may have.
//!
//! ```text
//!  users/USER/CID      an empty link: the image counts towards USER
//!  users/USER/regions/NAME  a region for objects: see `regions.rs`
//!  users/USER/quota    magic, version, checksum, bytes, images
//! ```
//! The link is made before its image is visible, and taken away after it: one without image counts nothing.

use farfork_types::Cid;
use serde::Serialize;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::PoolError;
use crate::layout::USERS;
use crate::pool::Pool;
use crate::regions::RegionInfo;

const QUOTA: &str = "quota";
const MAGIC: u64 = u64::from_le_bytes(*b"farforkQ");
const VERSION: u32 = 1;
/// Bytes of a user's name.
const MOST_BYTES: usize = 200;

#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    magic: u64,
    version: u32,
    /// crc32c of the record with 0 in this place.
    checksum: u32,
    bytes: u64,
    images: u64,
}

const _: () = assert!(size_of::<Record>() == 32);

/// What a user may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Quota {
    /// Bytes of all images and regions.
    pub bytes: u64,
    /// Images.
    pub images: u64,
}

/// What is to count towards a user, besides what the user has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) bytes: u64,
    pub(crate) images: u64,
}

impl Quota {
    /// No limit.
    pub const NONE: Quota = Quota { bytes: u64::MAX, images: u64::MAX };
}

/// What a user has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UserInfo {
    /// The user.
    pub user: String,
    /// Images that were published for the user.
    pub images: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Regions for objects.
    pub regions: Vec<RegionInfo>,
    /// Most bytes of images and regions; absent if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Most images; absent if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_images: Option<u64>,
}

impl UserInfo {
    /// Bytes of the user's regions.
    pub fn region_bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.bytes).sum()
    }

    fn things(&self) -> String {
        match self.regions.len() {
            0 => format!("{} images", self.images),
            regions => format!("{} images and {regions} regions", self.images),
        }
    }
}

impl Pool {
    pub(crate) fn check_user(&self, user: &str) -> Result<(), PoolError> {
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_name = (1..=MOST_BYTES).contains(&user.len())
            && user.bytes().all(is_fit)
            && !user.starts_with(['.', '-']);
        match is_name {
            true => Ok(()),
            false => Err(PoolError::BadUser { user: user.to_owned() }),
        }
    }

    /// What `user` may have.
    ///
    /// # Errors
    /// [`PoolError::BadUser`], [`PoolError::DamagedQuota`], [`PoolError::Io`].
    pub fn quota(&self, user: &str) -> Result<Quota, PoolError> {
        self.check_user(user)?;
        let name = format!("{USERS}/{user}/{QUOTA}");
        let read = || -> std::io::Result<Option<Record>> {
            let flags = rustix::fs::OFlags::RDONLY;
            let Some(file) = self.directory.open_file(&name, flags)? else { return Ok(None) };
            let mut bytes = [0; size_of::<Record>()];
            let read = std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0);
            Ok(Some(read.map_or(Record::default(), |()| zerocopy::transmute!(bytes))))
        };
        match read().map_err(self.directory.failed("read", &name))? {
            None => Ok(Quota::NONE),
            Some(record) if record == sealed(record.bytes, record.images) => {
                Ok(Quota { bytes: record.bytes, images: record.images })
            }
            Some(_) => {
                let path = self.path().to_owned();
                Err(PoolError::DamagedQuota { path, user: user.to_owned() })
            }
        }
    }

    /// Limits what `user` may have. Images that are there stay.
    ///
    /// # Errors
    /// [`PoolError::BadUser`], [`PoolError::Gone`], [`PoolError::Io`].
    pub fn set_quota(&self, user: &str, quota: Quota) -> Result<(), PoolError> {
        self.check_user(user)?;
        self.reachable()?;
        let _lock = self.lock()?;
        let directory = format!("{USERS}/{user}");
        let name = format!("{directory}/{QUOTA}");
        let record = sealed(quota.bytes, quota.images);
        self.directory
            .make(&directory)
            .and_then(|()| self.directory.put(&name, record.as_bytes()))
            .map_err(self.directory.failed("write", &name))
    }

    /// What `user` has.
    ///
    /// # Errors
    /// [`PoolError::BadUser`], [`PoolError::Io`].
    pub fn user_info(&self, user: &str) -> Result<UserInfo, PoolError> {
        self.check_user(user)?;
        let mut info = UserInfo {
            user: user.to_owned(),
            images: 0,
            bytes: 0,
            regions: self.regions(user)?,
            quota_bytes: None,
            quota_images: None,
        };
        for cid in self.owned(user)? {
            let taken = self.taken(cid).map_err(self.directory.failed("look at", USERS))?;
            if let Some((image, tables)) = taken {
                info.images += 1;
                info.bytes += image + tables;
            }
        }
        let quota = self.quota(user)?;
        info.quota_bytes = (quota.bytes != u64::MAX).then_some(quota.bytes);
        info.quota_images = (quota.images != u64::MAX).then_some(quota.images);
        Ok(info)
    }

    /// All users that have images, regions or limits, and those of their images.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn users(&self) -> Result<Vec<String>, PoolError> {
        let failed = || self.directory.failed("list", USERS);
        let mut users = Vec::new();
        for user in self.directory.list(USERS).map_err(failed())? {
            let is_directory = self.directory.is_directory(&format!("{USERS}/{user}"));
            if self.check_user(&user).is_ok() && is_directory.map_err(failed())? {
                users.push(user);
            }
        }
        users.sort();
        Ok(users)
    }

    /// The images that were published for `user`, and perhaps some that are gone.
    pub(crate) fn owned(&self, user: &str) -> Result<Vec<Cid>, PoolError> {
        let directory = format!("{USERS}/{user}");
        let names = self.directory.list(&directory);
        let names = names.map_err(self.directory.failed("list", &directory))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Refuses what would be more than `user` may have.
    pub(crate) fn check_quota(&self, user: Option<&str>, more: Counts) -> Result<(), PoolError> {
        let Some(user) = user else { return Ok(()) };
        let quota = self.quota(user)?;
        if quota == Quota::NONE {
            return Ok(());
        }
        let has = self.user_info(user)?;
        let bytes = has.bytes + has.region_bytes();
        let is_within = more.images == 0 || has.images < quota.images;
        let what = match (is_within, bytes.saturating_add(more.bytes) <= quota.bytes) {
            (true, true) => return Ok(()),
            (false, _) => format!("{} images are all that the user may have", quota.images),
            (true, false) => format!(
                "{} bytes more than the {bytes} of the user's {} are over the limit of {}",
                more.bytes,
                has.things(),
                quota.bytes
            ),
        };
        Err(PoolError::OverQuota { path: self.path().to_owned(), user: user.to_owned(), what })
    }

    /// Lets `cid` count towards `user`.
    pub(crate) fn own(&self, user: &str, cid: Cid) -> Result<(), PoolError> {
        let directory = format!("{USERS}/{user}");
        let put = || {
            self.directory.make(&directory)?;
            self.directory.make_link("-", &format!("{directory}/{cid}"))
        };
        put().map_err(self.directory.failed("write to", &directory))
    }

    /// Lets `cid` count towards no user.
    pub(crate) fn disown(&self, cid: Cid) -> Result<(), PoolError> {
        for user in self.users()? {
            let name = format!("{USERS}/{user}/{cid}");
            let removed = self.directory.remove(&name);
            if removed.map_err(self.directory.failed("remove", &name))? {
                break;
            }
        }
        Ok(())
    }
}

fn sealed(bytes: u64, images: u64) -> Record {
    let record = Record { magic: MAGIC, version: VERSION, checksum: 0, bytes, images };
    Record { checksum: crc32c::crc32c(record.as_bytes()), ..record }
}

impl PartialEq for Record {
    fn eq(&self, other: &Record) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}
