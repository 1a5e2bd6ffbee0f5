//! Pages of lists.

use serde::Deserialize;

use crate::api::ApiError;

/// Most entries of a list.
const MOST_LISTED: usize = 200;
/// Entries if the client gives no limit.
const USUALLY_LISTED: usize = 30;

/// A page of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Page {
    limit: Option<usize>,
    skip: usize,
    /// Whether only the number of all entries is returned.
    pub count: bool,
}

impl Page {
    /// How many entries to skip, and how many to return; OpenWhisk's limit 0 means the most
    /// allowed.
    pub fn bounds(&self) -> Result<(usize, usize), ApiError> {
        match self.limit {
            Some(limit) if limit > MOST_LISTED => Err(ApiError::BadRequest(format!(
                "the limit of a list is {limit}, but may be at most {MOST_LISTED}"
            ))),
            _ if self.count => Ok((self.skip, usize::MAX)),
            Some(0) => Ok((self.skip, MOST_LISTED)),
            limit => Ok((self.skip, limit.unwrap_or(USUALLY_LISTED))),
        }
    }
}
