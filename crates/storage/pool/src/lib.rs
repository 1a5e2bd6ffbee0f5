//! Memory that several nodes map: a directory with one file per image.
//!
//! ```text
//!  POOL/superblock               56 bytes: magic, version, checksum, size, uuid, medium; it appears last
//!  POOL/images/CID               one file per image, mode 0400; what is in it is the image's format
//!  POOL/names/USER/FUNCTION/TAG  a link to ../../../images/CID
//!  POOL/tables/CID/WRITER        what is learnt about an image's pages; WRITER is a node, or "users"
//!  POOL/users/USER/CID           an empty link: which images count towards a user
//!  POOL/users/USER/quota         32 bytes: magic, version, checksum, bytes, images
//!  POOL/nodes/NODE               256 bytes of header, then the ids of the images that a node's clones map
//!  POOL/removed/CID              where several kernels share the medium: removed, but a node pins it
//!  POOL/new/*                    files that are not at their place yet
//! ```
//!
//! Any process that uses a pool may be killed at any instruction. What holds at every moment:
//!
//! 1. What lies at its place is complete. It came there by one `linkat` or `rename`.
//! 2. An image that is written has no name, and goes with its writer. A medium without such files has it
//!    in `new/`, as are all other files on the way: locked by its writer, and swept when it is not.
//! 3. A published image never changes. It is removed by `unlink`; the kernel keeps it for the processes
//!    that map it, clears its memory, and gives that back with the last mapping.
//! 4. A process that maps an image can reach that image, whatever it does: no other is in the file. Past
//!    its end there is SIGBUS.
//! 5. Nothing here maps a file that has a name: one that is truncated by others is an error, no signal.
//! 6. Locks are byte ranges of open file descriptions far beyond the end of a file: the kernel drops
//!    them when the last holder dies. No process id is ever written down. A lock reaches the processes
//!    of one kernel, in whatever namespaces.
//!
//! A process that forks must let the child close the pool's file descriptors (exec does), or a lock that
//! the parent held when it was killed lives on in the child.

mod account;
mod bandwidth;
mod charge;
mod check;
mod copy;
mod directory;
mod error;
#[doc(hidden)]
pub mod failpoint;
mod far_parts;
mod host;
mod image_file;
mod info;
mod layout;
mod lock;
mod map;
mod media;
mod names;
mod nodes;
mod order;
mod ownership;
mod pinfile;
mod placement;
mod pool;
mod probe;
mod region_writer;
mod regions;
mod superblock;
mod tables;
mod users;
mod writer;

pub use check::{CheckReport, Finding};
pub use copy::source_of_copy;
pub use error::PoolError;
pub use far_parts::FarParts;
pub use host::{BorrowedImage, Host};
pub use image_file::{ImageFile, ImageId};
pub use info::{ImageInfo, ImageState, PoolInfo};
pub use layout::{MAX_NODE_NAME_BYTES, TRUSTED_OWNER};
pub use media::{Medium, maps_huge_pages, mount_tmpfs, unmount_tmpfs};
pub use names::{NamedImage, NamesLock};
pub use nodes::{Forgotten, NodeId, NodeRow};
pub use ownership::Ownership;
pub use pinfile::PinFile;
pub use pool::Pool;
pub use regions::RegionInfo;
pub use tables::{AccessTable, Epochs, PageBits};
pub use users::{Quota, UserInfo};
pub use writer::{Held, ImageWriter};
