//! Parts of lists.

use serde::Deserialize;

use crate::api::ApiError;

/// Most entries of a list.
const MOST_LISTED: usize = 200;
/// As many are told if nobody says how many.
const USUALLY_LISTED: usize = 30;

/// Which part of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Page {
    limit: Option<usize>,
    skip: usize,
    /// Whether only the number of entries is told, however many there are.
    pub count: bool,
}

impl Page {
    /// How many are left out, and how many told; OpenWhisk takes 0 for as many as there may be.
    pub fn bounds(&self) -> Result<(usize, usize), ApiError> {
        match self.limit {
            Some(limit) if limit > MOST_LISTED => Err(ApiError::BadRequest(format!(
                "the limit of a list is {limit}, and may be up to {MOST_LISTED}"
            ))),
            _ if self.count => Ok((self.skip, usize::MAX)),
            Some(0) => Ok((self.skip, MOST_LISTED)),
            limit => Ok((self.skip, limit.unwrap_or(USUALLY_LISTED))),
        }
    }
}
