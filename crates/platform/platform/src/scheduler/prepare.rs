//! Getting a server ready for its checkpoint: `POST /prepare`, farfork's own.

use std::time::Duration;

use farfork_types::wire::AddressRange;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::nodes::Connect;

/// How long the hooks before a checkpoint may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes of the answer.
const MOST_BYTES: u64 = 1 << 20;
/// Most ranges that it may declare hot: they become arguments of a command, which takes no more than a few
/// times as many.
const MOST_HOT: usize = 16_384;

const REQUEST: &[u8] = b"POST /prepare HTTP/1.1\r\nHost: action\r\nConnection: close\r\n\
                         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";

/// What the answer tells.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Prepared {
    error: Option<String>,
    /// Addresses of what the function has declared hot; what stands here is whatever it likes.
    hot: Vec<String>,
}

/// Has the server run its hooks and end its connections; the addresses of what is declared hot.
pub async fn prepare(connect: &Connect) -> Result<Vec<AddressRange>, String> {
    let answer = timeout(PATIENCE, ask(connect)).await;
    understood(&answer.map_err(|_| "its hooks before a checkpoint take too long")??)
}

/// The server closes the connection last of all, and nothing tells that but the end of the stream.
async fn ask(connect: &Connect) -> Result<Vec<u8>, String> {
    let told = |error: std::io::Error| farfork_sys::words::of(&error);
    let mut stream = connect().await.map_err(told)?;
    stream.write_all(REQUEST).await.map_err(told)?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).await.map_err(told)?;
    Ok(answer)
}

fn understood(answer: &[u8]) -> Result<Vec<AddressRange>, String> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let prepared: Prepared = serde_json::from_str(body).unwrap_or_default();
    match head.split(' ').nth(1) {
        Some("200") => ranges(&prepared.hot),
        // A server that knows nothing of checkpoints has nothing to do before one.
        Some("404" | "405" | "501") => Ok(Vec::new()),
        status => Err(prepared.error.unwrap_or_else(|| {
            format!("its server answers to /prepare with status {}", status.unwrap_or("none"))
        })),
    }
}

fn ranges(hot: &[String]) -> Result<Vec<AddressRange>, String> {
    if hot.len() > MOST_HOT {
        return Err(format!("it declares more than {MOST_HOT} ranges of its memory hot"));
    }
    // It is not told what stands there instead, which may be anything.
    let range = |text: &String| text.parse().map_err(|_| "what it declares hot is no memory");
    hot.iter().map(range).collect::<Result<_, _>>().map_err(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: &str, body: &str) -> Result<Vec<AddressRange>, String> {
        understood(format!("HTTP/1.1 {status}\r\nA: b\r\n\r\n{body}").as_bytes())
    }

    #[test]
    fn servers_that_know_nothing_of_it_are_ready() {
        let range = AddressRange { process: None, start: 10, end: 11 };
        assert_eq!(of("200 OK", r#"{"ok": true, "hot": ["a-b"]}"#), Ok(vec![range]));
        assert_eq!(of("200 OK", "{}"), Ok(vec![]));
        assert_eq!(of("404 Not Found", "no"), Ok(vec![]));
        assert_eq!(of("502 Bad", r#"{"error": "a hook failed"}"#), Err("a hook failed".to_owned()));
        assert!(of("500 Bad", "<html>").unwrap_err().contains("500"));
        assert!(understood(b"").unwrap_err().contains("none"), "it has just ended");
    }

    #[test]
    fn what_is_no_range_gets_no_further() {
        for wrong in ["--kill", "--name=farfork/python", "1000-2000 --kill", "", "-"] {
            let body = serde_json::json!({ "hot": ["1000-2000", wrong] }).to_string();
            assert!(of("200 OK", &body).unwrap_err().contains("no memory"), "{wrong}");
        }
        let body = |count: usize| serde_json::json!({ "hot": vec!["1-2"; count] }).to_string();
        assert_eq!(of("200 OK", &body(MOST_HOT)).unwrap().len(), MOST_HOT);
        assert!(of("200 OK", &body(MOST_HOT + 1)).unwrap_err().contains("more than 16384"));
    }
}
