//! The page and its files, which are compiled into the program: nothing is built or fetched at run
//! time.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use crate::api::ApiError;

/// The page's content security policy: only its own files and its own platform.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The page's file name.
const PAGE: &str = "index.html";

macro_rules! parts {
    ($($name:literal as $kind:ident),* $(,)?) => {
        [$(($name, $kind, include_str!(concat!("assets/", $name)))),*]
    };
}

/// Name, media type and text of each file.
const PARTS: [(&str, &str, &str); 12] = parts![
    "index.html" as HTML,
    "style.css" as CSS,
    "icon.svg" as SVG,
    "main.js" as SCRIPT,
    "stream.js" as SCRIPT,
    "words.js" as SCRIPT,
    "tables.js" as SCRIPT,
    "charts.js" as SCRIPT,
    "figures.js" as SCRIPT,
    "decisions.js" as SCRIPT,
    "uplot/uPlot.iife.min.js" as SCRIPT,
    "uplot/uPlot.min.css" as CSS,
];

/// A file, and its entity tag.
#[derive(Debug)]
struct Part {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
    mark: HeaderValue,
}

/// The routes of the page and its files.
pub fn router() -> Router {
    let parts: Arc<[Part]> = PARTS.into_iter().map(part).collect();
    let page = Arc::clone(&parts);
    let answer = |parts: &[Part], name: &str, asked: &HeaderMap| {
        let part = parts.iter().find(|part| part.name == name);
        part.map_or_else(
            || ApiError::NotFound(format!("the dashboard has no file '{name}'")).into_response(),
            |part| part.answer(asked),
        )
    };
    Router::new()
        .route("/", get(move |asked: HeaderMap| async move { answer(&page, PAGE, &asked) }))
        .route(
            "/dashboard/{*name}",
            get(move |Path(name): Path<String>, asked: HeaderMap| async move {
                answer(&parts, &name, &asked)
            }),
        )
}

fn part((name, kind, text): (&'static str, &'static str, &'static str)) -> Part {
    let mut mark = String::from("\"");
    for byte in Sha256::digest(text).iter().take(16) {
        // Writing to a string does not fail.
        let _ = write!(mark, "{byte:02x}");
    }
    mark.push('"');
    // Digits and quotation marks are valid in a header.
    let mark = HeaderValue::from_str(&mark).unwrap_or(HeaderValue::from_static("\"\""));
    Part { name, kind, text, mark }
}

impl Part {
    /// The file, or 304 if the browser has this version.
    fn answer(&self, asked: &HeaderMap) -> Response {
        let is_cached = asked.get_all(IF_NONE_MATCH).iter().any(|mark| *mark == self.mark);
        let mut response = match is_cached {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => ([(CONTENT_TYPE, self.kind)], self.text).into_response(),
        };
        let headers = response.headers_mut();
        headers.insert(ETAG, self.mark.clone());
        // Cached, but revalidated each time: the next farfork may have other files.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(answer: &Response, name: axum::http::HeaderName) -> &str {
        answer.headers()[name].to_str().unwrap()
    }

    #[test]
    fn a_cached_file_is_not_sent_again() {
        let parts: Vec<Part> = PARTS.into_iter().map(part).collect();
        let page = parts.iter().find(|part| part.name == PAGE).unwrap();
        let first = page.answer(&HeaderMap::new());
        assert_eq!((first.status(), header(&first, CONTENT_TYPE)), (StatusCode::OK, HTML));
        assert!(header(&first, CONTENT_SECURITY_POLICY).starts_with("default-src 'none'; "));
        let mark = first.headers()[ETAG].clone();
        let asked = HeaderMap::from_iter([(IF_NONE_MATCH, mark.clone())]);
        let again = page.answer(&asked);
        assert_eq!((again.status(), &again.headers()[ETAG]), (StatusCode::NOT_MODIFIED, &mark));
        let others = parts.iter().filter(|part| part.name != PAGE);
        for other in others {
            assert_ne!(other.mark, mark);
            assert_eq!(other.answer(&asked).status(), StatusCode::OK, "{}", other.name);
        }
    }

    #[test]
    fn the_page_refers_only_to_files_that_exist() {
        let names: Vec<&str> = PARTS.iter().map(|(name, ..)| *name).collect();
        let own = PARTS.iter().filter(|(name, ..)| !name.starts_with("uplot/"));
        for (name, _, text) in own {
            for rest in text.split("\"/dashboard/").skip(1) {
                let named = rest.split('"').next().unwrap();
                let is_route = ["snapshot", "events"].contains(&named);
                assert!(is_route || names.contains(&named), "{name} names {named}");
            }
            let is_elsewhere = text.contains("://") && *name != "icon.svg";
            assert!(!is_elsewhere, "{name} refers to another server");
        }
    }
}
