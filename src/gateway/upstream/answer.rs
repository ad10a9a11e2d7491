//! Reads a vendor's response chunk by chunk, and can look one chunk ahead.

use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::poll;
use pingora::ErrorType;
use pingora::protocols::http::client::HttpSession as Upstream;
use pingora::upstreams::peer::HttpPeer;

use crate::dialect::relay::RelayError;
use crate::gateway::state::Gateway;

/// How long a connection may take to end its response, so that it can be reused.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// A vendor's response whose head has been read, with its connection.
pub(crate) struct UpstreamResponse {
    pub(crate) connection: Upstream,
    /// Whether the whole request was sent. If not, the connection cannot be reused.
    pub(crate) request_sent: bool,
    /// Whether the end of the body was read.
    ended: bool,
    pub(crate) read_bytes: u64,
    /// The result of a read ahead, which the next read returns.
    peeked: Option<UpstreamRead>,
}

/// The result of one read of a response body.
pub(crate) enum UpstreamRead {
    Piece(Bytes),
    End,
    Failed(RelayError),
}

impl UpstreamResponse {
    pub(crate) fn new(connection: Upstream, request_sent: bool) -> UpstreamResponse {
        UpstreamResponse { connection, request_sent, ended: false, read_bytes: 0, peeked: None }
    }

    /// Returns the first chunk of the body that is not empty; the next read returns it again.
    /// `None` if the body is empty, and an empty slice if the read failed.
    pub(crate) async fn peek_body(&mut self) -> Option<&[u8]> {
        let mut read = self.read_chunk().await;
        while matches!(&read, UpstreamRead::Piece(piece) if piece.is_empty()) {
            read = self.read_chunk().await;
        }
        match self.peeked.insert(read) {
            UpstreamRead::Piece(piece) => Some(piece),
            UpstreamRead::End => None,
            UpstreamRead::Failed(_) => Some(&[]),
        }
    }

    pub(crate) async fn read_chunk(&mut self) -> UpstreamRead {
        if let Some(read) = self.peeked.take() {
            return read;
        }
        let read = self.connection.read_response_body().await;
        self.classify_read(read)
    }

    /// Returns the next chunk if it can be read without waiting, otherwise `None`. A read that
    /// would wait is dropped, which loses no bytes.
    pub(crate) async fn try_read_chunk(&mut self) -> Option<UpstreamRead> {
        if let Some(read) = self.peeked.take() {
            return Some(read);
        }
        let read = match poll!(Box::pin(self.connection.read_response_body())) {
            Poll::Ready(read) => read,
            Poll::Pending => return None,
        };
        Some(self.classify_read(read))
    }

    pub(crate) fn classify_read(&mut self, read: pingora::Result<Option<Bytes>>) -> UpstreamRead {
        match read {
            Ok(Some(piece)) => {
                self.read_bytes += piece.len() as u64;
                UpstreamRead::Piece(piece)
            }
            Ok(None) => {
                self.ended = true;
                UpstreamRead::End
            }
            Err(why) if *why.etype() == ErrorType::ReadTimedout => {
                UpstreamRead::Failed(RelayError::Stalled)
            }
            Err(_) => UpstreamRead::Failed(RelayError::Truncated),
        }
    }
}

/// Returns the connection to the pool. A stream's connection is reusable once the end of the body
/// arrives after the last event; that wait is done in a task, so the client does not wait.
pub(crate) async fn release_connection(
    gateway: &Gateway,
    mut vendor: Box<UpstreamResponse>,
    peer: &HttpPeer,
) {
    let more = !vendor.ended
        && matches!(
            vendor.try_read_chunk().await,
            Some(UpstreamRead::Piece(_) | UpstreamRead::Failed(_))
        );
    // Bytes after the end of the response: the connection cannot be reused.
    if more || !vendor.request_sent {
        vendor.connection.shutdown().await;
        return;
    }
    if vendor.ended {
        gateway.upstream_pool.release(vendor.connection, peer).await;
        return;
    }
    let (pool, peer) = (gateway.upstream_pool.clone(), peer.clone());
    tokio::spawn(async move {
        match tokio::time::timeout(RELEASE_TIMEOUT, vendor.read_chunk()).await {
            Ok(UpstreamRead::End) => pool.release(vendor.connection, &peer).await,
            _ => vendor.connection.shutdown().await,
        }
    });
}
