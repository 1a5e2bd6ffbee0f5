//! Authentication of clients.

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Gateway;
use crate::api::{ApiError, Name};

/// A client with a valid key (HTTP Basic, `USER:SECRET`).
#[derive(Clone, Debug)]
pub struct Identity {
    /// The namespace that the key opens.
    pub namespace: Name,
}

impl Identity {
    /// Checks that the namespace in a path is the key's; `_` stands for it.
    pub fn opens(&self, namespace: &str) -> Result<&Name, ApiError> {
        if namespace == "_" || namespace == self.namespace.as_str() {
            return Ok(&self.namespace);
        }
        super::name(namespace)?;
        Err(ApiError::Forbidden(namespace.to_owned()))
    }
}

impl FromRequestParts<Gateway> for Identity {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Gateway,
    ) -> Result<Identity, ApiError> {
        if is_of_another_site(&parts.headers) {
            return Err(ApiError::CrossSite);
        }
        let header = parts.headers.get(AUTHORIZATION).and_then(|header| header.to_str().ok());
        let (user, secret) = header.and_then(credentials).ok_or(ApiError::Unauthorized)?;
        let key = gateway.store.key(&user)?;
        // The same work is done for an unknown user, so that timing does not reveal which users
        // exist.
        let known = key.as_ref().map_or([0; 32], |key| key.secret_sha256);
        let is_it = has_digest(secret.as_bytes(), &known);
        key.filter(|_| is_it)
            .map(|key| Identity { namespace: key.namespace })
            .ok_or(ApiError::Unauthorized)
    }
}

/// Whether a browser says that a page of another site, or origin, sends this. Pages of web actions are of such.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    matches!(site, Some(b"cross-site" | b"same-site"))
}

/// Whether a secret has this SHA-256. Takes constant time, so that timing reveals nothing of it.
pub fn has_digest(shown: &[u8], sha256: &[u8; 32]) -> bool {
    let hash: [u8; 32] = Sha256::digest(shown).into();
    bool::from(hash.ct_eq(sha256))
}

fn credentials(header: &str) -> Option<(String, String)> {
    let (scheme, encoded) = header.split_once(' ')?;
    let text =
        STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"));
    let text = String::from_utf8(text?).ok()?;
    let (user, secret) = text.split_once(':')?;
    Some((user.to_owned(), secret.to_owned()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    #[test]
    fn pages_of_other_sites_have_no_credentials() {
        let of = |site: &'static str| {
            is_of_another_site(&HeaderMap::from_iter([(
                HeaderName::from_static("sec-fetch-site"),
                HeaderValue::from_static(site),
            )]))
        };
        assert!(of("cross-site") && of("same-site"));
        assert!(!of("same-origin") && !of("none") && !is_of_another_site(&HeaderMap::new()));
    }

    #[test]
    fn credentials_are_basic() {
        let encoded = STANDARD.encode("user:se:cret");
        let found = Some(("user".to_owned(), "se:cret".to_owned()));
        assert_eq!(credentials(&format!("Basic {encoded}")), found);
        assert_eq!(credentials(&format!("basic  {encoded}")), found);
        for bad in ["", "Basic", "Basic !", &format!("Bearer {encoded}"), "Basic dXNlcg=="] {
            assert_eq!(credentials(bad), None, "{bad}");
        }
    }
}
