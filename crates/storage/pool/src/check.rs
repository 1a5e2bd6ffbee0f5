//! Verifies what a pool can be relied on for, and gives back what the dead left.

use farfork_types::Cid;
use serde::{Serialize, Serializer};

use crate::error::PoolError;
use crate::layout::{IMAGES, NEW, NODES, REMOVED, TABLES, USERS};
use crate::nodes::NodeId;
use crate::pool::Pool;
use crate::regions;
use crate::superblock::Superblock;

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Published images whose files are as they should be.
    pub images: usize,
    /// Bytes free afterwards.
    pub free_bytes: u64,
    /// Everything out of the ordinary.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    /// Whether nothing is broken. What dead writers and removed images left is not damage.
    pub fn is_sound(&self) -> bool {
        !self.findings.iter().any(Finding::is_damage)
    }
}

/// One thing out of the ordinary. The message says what was or is to be done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "found", rename_all = "snake_case")]
pub enum Finding {
    /// Writers died on a medium that has no files without a name.
    #[error("writers of {files} files have died: {bytes} bytes given back")]
    DeadWriters {
        /// What they left.
        files: usize,
        /// Bytes of these.
        bytes: u64,
    },
    /// A removed image was not given back yet.
    #[error("image {cid} was removed and is not pinned: {bytes} bytes given back")]
    LeftByRemoval {
        /// The image.
        #[serde(serialize_with = "as_text")]
        cid: Cid,
        /// Bytes it held.
        bytes: u64,
    },
    /// Something in the pool was not made by it.
    #[error("{name} is none of the pool's files: move it elsewhere")]
    Stray {
        /// Its name in the pool.
        name: String,
    },
    /// The file of an image is not as it was published.
    #[error("image {cid} cannot be used: {why}")]
    BadImage {
        /// The image.
        #[serde(serialize_with = "as_text")]
        cid: Cid,
        /// Why, and what to do.
        why: String,
    },
    /// Side tables of an image that is gone.
    #[error("tables of image {name}, which is gone, were left: removed")]
    LostTables {
        /// The image.
        name: String,
    },
    /// Side tables cannot be read. What they held about hot pages is lost.
    #[error("the access tables of image {cid} were damaged: dropped, profile it again")]
    DamagedTables {
        /// The image.
        #[serde(serialize_with = "as_text")]
        cid: Cid,
    },
    /// An image that is gone counted towards a user.
    #[error("image {cid}, which is gone, was listed as one of user {user}: removed")]
    LostOwnership {
        /// The image.
        #[serde(serialize_with = "as_text")]
        cid: Cid,
        /// The user.
        user: String,
    },
    /// A limit cannot be read.
    #[error("the limits of user {user} are damaged: set them with `farfork pool quota`")]
    DamagedQuota {
        /// The user.
        user: String,
    },
    /// The file of a node cannot be read.
    #[error("the file of node {name} is damaged: removed; its agent makes it anew")]
    DamagedNode {
        /// Its name in the pool.
        name: String,
    },
    /// A pin of an image that is gone. It keeps nothing.
    #[error("node {node} pins image {cid}, which is gone: its agent clears that when it starts")]
    StalePin {
        /// The node.
        node: String,
        /// The image.
        #[serde(serialize_with = "as_text")]
        cid: Cid,
    },
}

impl Finding {
    /// Whether something is broken that no crash explains.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Finding::Stray { .. }
                | Finding::BadImage { .. }
                | Finding::DamagedTables { .. }
                | Finding::DamagedQuota { .. }
                | Finding::DamagedNode { .. }
        )
    }
}

fn as_text<S: Serializer>(cid: &Cid, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(cid)
}

impl Pool {
    /// Verifies what lies in the pool but the contents of images, and gives back what dead writers and
    /// removed images without pins hold.
    ///
    /// # Errors
    /// As [`open`](Pool::open): without a sound superblock there is nothing to check.
    pub fn check(&self) -> Result<CheckReport, PoolError> {
        self.intact()?;
        Superblock::load(&self.directory)?;
        let _lock = self.lock()?;
        let mut findings = Vec::new();
        self.check_left(&mut findings)?;
        self.check_nodes(&mut findings)?;
        let images = self.check_images(&mut findings)?;
        self.check_tables(&mut findings)?;
        self.check_users(&mut findings)?;
        Ok(CheckReport { images, free_bytes: self.space()?.1, findings })
    }

    /// For what stands in the place of a file of the pool: it is found, and stays.
    fn or_stray<T>(
        &self,
        looked: Result<T, PoolError>,
        findings: &mut Vec<Finding>,
    ) -> Result<Option<T>, PoolError> {
        match looked {
            Err(PoolError::Misplaced { path, .. }) => {
                let name = path.strip_prefix(self.path()).unwrap_or(&path);
                let finding = Finding::Stray { name: name.display().to_string() };
                if !findings.contains(&finding) {
                    findings.push(finding);
                }
                Ok(None)
            }
            looked => looked.map(Some),
        }
    }

    fn check_left(&self, findings: &mut Vec<Finding>) -> Result<(), PoolError> {
        let swept = self.directory.sweep();
        let (files, bytes) = swept.map_err(self.directory.failed("sweep", ""))?;
        findings.extend((files > 0).then_some(Finding::DeadWriters { files, bytes }));
        let new = self.directory.list(NEW).map_err(self.directory.failed("list", NEW))?;
        for path in new.iter().map(|name| format!("{NEW}/{name}")) {
            if self.is_directory(&path)? {
                findings.push(Finding::Stray { name: path });
            }
        }
        let removed = self.directory.list(REMOVED);
        for name in removed.map_err(self.directory.failed("list", REMOVED))? {
            let Ok(cid) = name.parse() else { continue };
            let bytes = self.or_stray(self.settle(cid), findings)?.unwrap_or(0);
            findings.extend((bytes > 0).then_some(Finding::LeftByRemoval { cid, bytes }));
        }
        Ok(())
    }

    fn check_nodes(&self, findings: &mut Vec<Finding>) -> Result<(), PoolError> {
        let failed = || self.directory.failed("look at the nodes of", "");
        for name in self.directory.list(NODES).map_err(failed())? {
            let path = format!("{NODES}/{name}");
            let node = match name.parse::<NodeId>() {
                Ok(id) if id.to_string() == name => {
                    let node = self.node(id).map_err(failed());
                    self.or_stray(node, findings)?.flatten()
                }
                _ => {
                    findings.push(Finding::Stray { name: path });
                    continue;
                }
            };
            match node {
                None => {}
                Some(None) => {
                    self.directory.remove(&path).map_err(failed())?;
                    findings.push(Finding::DamagedNode { name });
                }
                Some(Some(node)) => {
                    for cid in node.pins.iter().flatten() {
                        if !self.is_there(*cid)? {
                            let node = node.name.clone();
                            findings.push(Finding::StalePin { node, cid: *cid });
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether an image is published, or removed and still mapped elsewhere.
    fn is_there(&self, cid: Cid) -> Result<bool, PoolError> {
        for directory in [IMAGES, REMOVED] {
            let name = format!("{directory}/{cid}");
            let found = self.directory.look(&name);
            if found.map_err(self.directory.failed("look at", &name))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_directory(&self, name: &str) -> Result<bool, PoolError> {
        self.directory.is_directory(name).map_err(self.directory.failed("look at", name))
    }

    /// Verifies the files of images; returns how many are as they should be.
    fn check_images(&self, findings: &mut Vec<Finding>) -> Result<usize, PoolError> {
        let (cids, strays) = self.listed()?;
        let stray = |name: String| Finding::Stray { name: format!("{IMAGES}/{name}") };
        findings.extend(strays.into_iter().map(stray));
        let mut sound = 0;
        for cid in cids {
            match self.find(cid) {
                Ok(_) => sound += 1,
                Err(PoolError::NoImage { .. }) => {} // just removed
                Err(error) => findings.push(Finding::BadImage { cid, why: error.to_string() }),
            }
        }
        Ok(sound)
    }

    fn check_tables(&self, findings: &mut Vec<Finding>) -> Result<(), PoolError> {
        let failed = || self.directory.failed("look at the tables of", "");
        for name in self.directory.list(TABLES).map_err(failed())? {
            let path = format!("{TABLES}/{name}");
            let finding = match name.parse::<Cid>() {
                Ok(cid) if self.is_there(cid)? => {
                    let tables = self.access_tables(cid);
                    let tables = tables.and_then(|_| self.access_order(cid));
                    if let Err(PoolError::Misplaced { .. }) = tables {
                        self.or_stray(tables, findings)?;
                        continue;
                    }
                    let is_damaged = !self.is_directory(&path)?
                        || matches!(
                            tables,
                            Err(PoolError::DamagedTables { .. } | PoolError::Io { .. })
                        );
                    is_damaged.then_some(Finding::DamagedTables { cid })
                }
                _ => Some(Finding::LostTables { name }),
            };
            if let Some(finding) = finding {
                let removed = self.directory.remove_with_files(&path).map_err(failed());
                if self.or_stray(removed, findings)?.is_some() {
                    findings.push(finding);
                }
            }
        }
        Ok(())
    }

    fn check_users(&self, findings: &mut Vec<Finding>) -> Result<(), PoolError> {
        let users = self.directory.list(USERS);
        for user in users.map_err(self.directory.failed("list", USERS))? {
            let directory = format!("{USERS}/{user}");
            if self.check_user(&user).is_err() || !self.is_directory(&directory)? {
                findings.push(Finding::Stray { name: directory });
                continue;
            }
            match self.quota(&user) {
                Err(PoolError::DamagedQuota { .. }) => {
                    findings.push(Finding::DamagedQuota { user: user.clone() });
                }
                Err(error @ PoolError::Misplaced { .. }) => {
                    self.or_stray(Err::<(), _>(error), findings)?;
                }
                _ => {}
            }
            for cid in self.owned(&user)? {
                if !self.is_there(cid)? {
                    let name = format!("{directory}/{cid}");
                    let removed = self.directory.remove(&name);
                    removed.map_err(self.directory.failed("remove", &name))?;
                    findings.push(Finding::LostOwnership { cid, user: user.clone() });
                }
            }
            self.check_regions(&user, findings)?;
            // Under the lock, as is what is put there: a user that has nothing is forgotten.
            let removed = self.directory.remove_directory(&directory);
            removed.map_err(self.directory.failed("remove", &directory))?;
        }
        Ok(())
    }

    fn check_regions(&self, user: &str, findings: &mut Vec<Finding>) -> Result<(), PoolError> {
        let directory = regions::directory(user);
        let failed = || self.directory.failed("look at", &directory);
        let known: Vec<_> = self.regions(user)?.into_iter().map(|region| region.name).collect();
        for name in self.directory.list(&directory).map_err(failed())? {
            if !known.contains(&name) {
                findings.push(Finding::Stray { name: format!("{directory}/{name}") });
            }
        }
        if self.is_directory(&directory)? {
            self.directory.remove_directory(&directory).map_err(failed())?;
        }
        Ok(())
    }
}
