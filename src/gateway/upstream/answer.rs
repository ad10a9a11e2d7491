//! Reads a vendor's response chunk by chunk, and can look one chunk ahead.

use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::poll;
use http::HeaderName;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, TRANSFER_ENCODING,
};
use pingora::http::ResponseHeader;
use pingora::protocols::http::client::HttpSession as Upstream;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType};

use crate::dialect::relay::RelayError;
use crate::gateway::response_head::ResponseHead;
use crate::gateway::state::Gateway;

/// How long a connection may take to end its response, so that it can be reused.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// The headers of a vendor's response that the gateway reads. All others are dropped.
const READ_HEADERS: [HeaderName; 5] = [
    CONTENT_TYPE,
    CONTENT_ENCODING,
    RETRY_AFTER,
    HeaderName::from_static("request-id"),
    HeaderName::from_static("x-request-id"),
];

/// The head of a vendor's response.
pub(crate) struct VendorHead {
    /// The status, and the headers that the gateway reads.
    pub(crate) fields: Box<ResponseHeader>,
    /// What the head says about the body.
    pub(crate) framing: BodyFraming,
}

/// What the head of a vendor's response says about its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyFraming {
    /// The length in bytes; `None` if it is not announced, or not understood.
    pub(crate) length: Option<usize>,
    /// Whether an empty body is announced: by status 204 or `content-length: 0`.
    pub(crate) is_empty: bool,
    /// Whether a complete body can be told from a truncated one. It cannot if only the end of the
    /// connection ends the body.
    pub(crate) has_end: bool,
}

impl VendorHead {
    /// Reads heads from a connection up to the one of the response itself.
    ///
    /// # Errors
    /// The connection broke or timed out, or what came is no head.
    pub(crate) async fn read(connection: &mut Upstream) -> pingora::Result<VendorHead> {
        loop {
            connection.read_response_header().await?;
            match connection.response_header() {
                Some(head) if head.status.is_informational() => {}
                Some(head) => return Ok(VendorHead::of_response(head)),
                None => return Error::e_explain(ErrorType::InvalidHTTPHeader, "no head was read"),
            }
        }
    }

    fn of_response(theirs: &ResponseHeader) -> VendorHead {
        let mut head = ResponseHead::new(theirs.status, READ_HEADERS.len());
        for name in READ_HEADERS {
            if let Some(value) = theirs.headers.get(&name) {
                head.insert(name, value);
            }
        }
        VendorHead { fields: Box::new(head.build()), framing: BodyFraming::of_response(theirs) }
    }
}

impl BodyFraming {
    fn of_response(theirs: &ResponseHeader) -> BodyFraming {
        let length = theirs.headers.get(CONTENT_LENGTH);
        let has_no_content = theirs.status == 204;
        BodyFraming {
            length: length.and_then(|length| length.to_str().ok()?.parse().ok()),
            is_empty: has_no_content || length.is_some_and(|length| length == "0"),
            has_end: has_no_content
                || theirs.version == http::Version::HTTP_2
                || length.is_some()
                || theirs.headers.contains_key(TRANSFER_ENCODING),
        }
    }
}

/// A vendor's response whose head has been read, with its connection.
pub(crate) struct UpstreamResponse {
    pub(crate) connection: Upstream,
    /// What the head says about the body.
    pub(crate) framing: BodyFraming,
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
    pub(crate) fn new(
        connection: Upstream,
        framing: BodyFraming,
        request_sent: bool,
    ) -> UpstreamResponse {
        let (ended, read_bytes, peeked) = (false, 0, None);
        UpstreamResponse { connection, framing, request_sent, ended, read_bytes, peeked }
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

#[cfg(test)]
mod tests {
    use http::Version;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::whole(200, Version::HTTP_11, "content-length", "12", (Some(12), false, true))]
    #[case::empty(200, Version::HTTP_11, "content-length", "0", (Some(0), true, true))]
    #[case::in_chunks(200, Version::HTTP_11, "transfer-encoding", "chunked", (None, false, true))]
    #[case::up_to_the_end_of_the_line(200, Version::HTTP_11, "server", "x", (None, false, false))]
    #[case::a_stream(200, Version::HTTP_2, "server", "x", (None, false, true))]
    #[case::no_content(204, Version::HTTP_11, "server", "x", (None, true, true))]
    #[case::odd_length(200, Version::HTTP_11, "content-length", "1,2", (None, false, true))]
    fn what_a_head_says_of_its_body_is_read_once(
        #[case] status: u16,
        #[case] version: Version,
        #[case] name: &'static str,
        #[case] value: &'static str,
        #[case] expected: (Option<usize>, bool, bool),
    ) {
        let mut theirs = ResponseHeader::build(status, None).expect("a head");
        theirs.set_version(version);
        theirs.insert_header(name, value).expect("a header");
        let head = VendorHead::of_response(&theirs);
        let BodyFraming { length, is_empty, has_end } = head.framing;
        assert_eq!((length, is_empty, has_end), expected);
        assert_eq!((head.fields.status, head.fields.headers.len()), (theirs.status, 0));
    }

    #[test]
    fn only_the_headers_that_the_gateway_reads_are_kept() {
        let mut theirs = ResponseHeader::build(429, None).expect("a head");
        for name in ["content-type", "retry-after", "x-request-id", "set-cookie", "server"] {
            theirs.insert_header(name, name).expect("a header");
        }
        let head = VendorHead::of_response(&theirs).fields;
        let mut kept: Vec<_> = head.headers.keys().map(HeaderName::as_str).collect();
        kept.sort_unstable();
        assert_eq!(
            (head.status.as_u16(), kept),
            (429, vec!["content-type", "retry-after", "x-request-id"])
        );
    }
}
