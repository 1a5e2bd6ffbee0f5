//! Bodies of responses that hold something until the last of them is sent: the bytes themselves hold it, since the HTTP
//! library takes them from the body long before the client does.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

/// A body, and what is dropped with it. Its length is known if that of the body is.
struct HeldBody<T> {
    body: Body,
    held: Arc<T>,
}

/// Bytes of such a body.
struct HeldBytes<T> {
    bytes: Bytes,
    _held: Arc<T>,
}

impl<T> AsRef<[u8]> for HeldBytes<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The response, which holds `held` until its body was sent, or the client is gone.
pub fn holding<T: Send + Sync + 'static>(response: Response, held: T) -> Response {
    response.map(|body| Body::new(HeldBody { body, held: Arc::new(held) }))
}

impl<T: Send + Sync + 'static> HttpBody for HeldBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let own = self.get_mut();
        let held = |bytes| Bytes::from_owner(HeldBytes { bytes, _held: Arc::clone(&own.held) });
        Pin::new(&mut own.body).poll_frame(task).map_ok(|frame| frame.map_data(held))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn what_is_held_goes_with_the_bytes_and_the_length_stays_known() {
        let held = Arc::new(());
        let response = holding(Response::new(Body::from("hello")), Arc::clone(&held));
        assert_eq!(response.body().size_hint().exact(), Some(5));
        assert_eq!(Arc::strong_count(&held), 2);
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((&bytes[..], Arc::strong_count(&held)), (&b"hello"[..], 2));
        drop(bytes);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
