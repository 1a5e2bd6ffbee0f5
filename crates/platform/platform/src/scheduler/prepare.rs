//! Preparing a server for its checkpoint: `POST /prepare`, an extension of farfork.

use std::time::Duration;

use farfork_types::wire::AddressRange;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::nodes::Connect;

/// Time limit of the before-checkpoint hooks.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes of the answer.
const MOST_BYTES: u64 = 1 << 20;
/// Most ranges that a function may declare hot. They become arguments of a command, whose number
/// the kernel limits to a few times this.
const MOST_HOT: usize = 16_384;

const REQUEST: &[u8] = b"POST /prepare HTTP/1.1\r\nHost: action\r\nConnection: close\r\n\
                         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";

/// The answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Prepared {
    error: Option<String>,
    /// Ranges that the function has declared hot. The texts are untrusted.
    hot: Vec<String>,
}

/// Makes the server run its hooks and close its connections; returns the ranges declared hot.
pub async fn prepare(connect: &Connect) -> Result<Vec<AddressRange>, String> {
    let answer = timeout(PATIENCE, ask(connect)).await;
    parse(&answer.map_err(|_| "its before-checkpoint hooks timed out")??)
}

/// Reads to the end of the stream, because the server closes the connection as its last step.
async fn ask(connect: &Connect) -> Result<Vec<u8>, String> {
    let reason = |error: std::io::Error| farfork_sys::words::of(&error);
    let mut stream = connect().await.map_err(reason)?;
    stream.write_all(REQUEST).await.map_err(reason)?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).await.map_err(reason)?;
    Ok(answer)
}

fn parse(answer: &[u8]) -> Result<Vec<AddressRange>, String> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let prepared: Prepared = serde_json::from_str(body).unwrap_or_default();
    match head.split(' ').nth(1) {
        Some("200") => ranges(&prepared.hot),
        // A server without /prepare needs no preparation.
        Some("404" | "405" | "501") => Ok(Vec::new()),
        status => Err(prepared.error.unwrap_or_else(|| {
            format!("its server answers /prepare with status {}", status.unwrap_or("none"))
        })),
    }
}

fn ranges(hot: &[String]) -> Result<Vec<AddressRange>, String> {
    if hot.len() > MOST_HOT {
        return Err(format!("it declares more than {MOST_HOT} ranges of its memory hot"));
    }
    // The message does not quote the untrusted text.
    let range = |text: &String| text.parse().map_err(|_| "it declares an invalid range hot");
    hot.iter().map(range).collect::<Result<_, _>>().map_err(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(status: &str, body: &str) -> Result<Vec<AddressRange>, String> {
        parse(format!("HTTP/1.1 {status}\r\nA: b\r\n\r\n{body}").as_bytes())
    }

    #[test]
    fn servers_without_prepare_are_ready() {
        let range = AddressRange { process: None, start: 10, end: 11 };
        assert_eq!(parsed("200 OK", r#"{"ok": true, "hot": ["a-b"]}"#), Ok(vec![range]));
        assert_eq!(parsed("200 OK", "{}"), Ok(vec![]));
        assert_eq!(parsed("404 Not Found", "no"), Ok(vec![]));
        assert_eq!(
            parsed("502 Bad", r#"{"error": "a hook failed"}"#),
            Err("a hook failed".to_owned())
        );
        assert!(parsed("500 Bad", "<html>").unwrap_err().contains("500"));
        assert!(parse(b"").unwrap_err().contains("none"), "it has just exited");
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for wrong in ["--kill", "--name=farfork/python", "1000-2000 --kill", "", "-"] {
            let body = serde_json::json!({ "hot": ["1000-2000", wrong] }).to_string();
            assert!(parsed("200 OK", &body).unwrap_err().contains("invalid range"), "{wrong}");
        }
        let body = |count: usize| serde_json::json!({ "hot": vec!["1-2"; count] }).to_string();
        assert_eq!(parsed("200 OK", &body(MOST_HOT)).unwrap().len(), MOST_HOT);
        assert!(parsed("200 OK", &body(MOST_HOT + 1)).unwrap_err().contains("more than 16384"));
    }
}
