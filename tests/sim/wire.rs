//! One connection: requests come out of its bytes, answers go in.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::tls::Protocol;

const HEAD_BYTES_MAX: usize = 256 << 10;
const HEADERS_MAX: usize = 128;
const BODY_BYTES_MAX: u64 = 64 << 20;
const READ_BYTES: usize = 16 << 10;

/// What the bytes of a connection go through.
pub(super) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {
    /// Makes its end a rude one.
    fn reset(&self);

    /// What its requests were sent in.
    fn protocol(&self) -> Protocol;
}

impl Transport for TcpStream {
    fn reset(&self) {
        // Without it the peer still sees an end, which is all that can be done.
        let _ = self.set_zero_linger();
    }

    fn protocol(&self) -> Protocol {
        Protocol::Plain
    }
}

impl Transport for TlsStream<TcpStream> {
    fn reset(&self) {
        self.get_ref().0.reset();
    }

    fn protocol(&self) -> Protocol {
        Protocol::Http1
    }
}

impl Transport for DuplexStream {
    /// Nothing to be done: whoever holds the other end is told in another way.
    fn reset(&self) {}

    fn protocol(&self) -> Protocol {
        Protocol::Http2
    }
}

/// A connection, and the bytes of it which are read but not used.
pub(super) struct Wire {
    stream: Box<dyn Transport>,
    buffer: BytesMut,
}

/// The head of a request.
pub(super) struct Head {
    pub(super) framing: Framing,
    /// Whether the connection ends after the answer.
    pub(super) last: bool,
    /// Whether the peer waits for a sign before it sends the body.
    pub(super) waits: bool,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
}

/// How the end of a body is found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
}

/// A head as far as all requests need it, nothing of it copied.
pub(super) struct Glance {
    pub(super) head_len: usize,
    pub(super) framing: Framing,
    pub(super) last: bool,
    pub(super) waits: bool,
}

impl Wire {
    pub(super) fn new(stream: Box<dyn Transport>) -> Wire {
        Wire { stream, buffer: BytesMut::with_capacity(READ_BYTES) }
    }

    /// Reads on until `look` finds in the head what it wants; none at the end of the connection.
    pub(super) async fn look<T>(
        &mut self,
        look: impl Fn(Glance, &httparse::Request<'_, '_>) -> T,
    ) -> io::Result<Option<T>> {
        loop {
            if !self.buffer.is_empty() {
                let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
                let mut request = httparse::Request::new(&mut headers);
                let parsed =
                    request.parse(&self.buffer).map_err(|error| broken(&error.to_string()))?;
                if let httparse::Status::Complete(head_len) = parsed {
                    return Ok(Some(look(glance(head_len, &request)?, &request)));
                }
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(broken("the head is too large"));
            }
            if !self.fill(READ_BYTES).await? {
                return Ok(None);
            }
        }
    }

    /// Leaves the head behind, and answers a peer who waits before its body.
    pub(super) async fn enter_body(&mut self, head_len: usize, waits: bool) -> io::Result<()> {
        self.buffer.advance(head_len);
        if waits {
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        Ok(())
    }

    /// Reads a body of known length, and gives it as it lies in the buffer.
    pub(super) async fn body_in_place(&mut self, length: usize) -> io::Result<BytesMut> {
        while self.buffer.len() < length {
            let missing = length - self.buffer.len();
            self.fill(missing.max(READ_BYTES)).await?.then_some(()).ok_or_else(cut_short)?;
        }
        Ok(self.buffer.split_to(length))
    }

    /// Reads a body of chunks, and adds their content to `body`.
    pub(super) async fn body_in_chunks(&mut self, body: &mut BytesMut) -> io::Result<()> {
        loop {
            let line_len = self.line().await?;
            let parsed = httparse::parse_chunk_size(&self.buffer[..line_len]);
            let Ok(httparse::Status::Complete((_, size))) = parsed else {
                return Err(broken("the size of a chunk is unreadable"));
            };
            self.buffer.advance(line_len);
            if size == 0 {
                break;
            }
            let room = BODY_BYTES_MAX.saturating_sub(body.len() as u64);
            let size = usize::try_from(size.min(room + 1)).expect("a bounded size");
            if size as u64 > room {
                return Err(broken("the body is too large"));
            }
            let chunk = self.body_in_place(size + 2).await?;
            body.extend_from_slice(&chunk[..size]);
        }
        // Trailers, of which nobody knows a use here, up to the empty line.
        loop {
            let line_len = self.line().await?;
            self.buffer.advance(line_len);
            if line_len <= 2 {
                return Ok(());
            }
        }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// What its requests were sent in.
    pub(super) fn protocol(&self) -> Protocol {
        self.stream.protocol()
    }

    /// Whether the peer hung up already, as far as can be told without waiting.
    pub(super) fn peer_is_gone(&mut self) -> bool {
        let reading = pin!(self.stream.read_buf(&mut self.buffer));
        match reading.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => !matches!(read, Ok(1..)),
            Poll::Pending => false,
        }
    }

    /// Says nothing until the peer hangs up, or the time is over.
    pub(super) async fn hold(&mut self, limit: Duration) {
        let gone = async { while let Ok(true) = self.fill(READ_BYTES).await {} };
        let _ = timeout(limit, gone).await;
    }

    /// Ends the connection as is agreed.
    pub(super) async fn close(mut self) {
        // Should the peer be gone, nobody is left to tell.
        let _ = self.stream.shutdown().await;
    }

    /// Breaks the connection off in the rudest way there is.
    pub(super) fn reset(self) {
        self.stream.reset();
    }

    async fn line(&mut self) -> io::Result<usize> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return Ok(end + 1);
            }
            if self.buffer.len() > READ_BYTES {
                return Err(broken("a line between chunks is too long"));
            }
            self.fill(READ_BYTES).await?.then_some(()).ok_or_else(cut_short)?;
        }
    }

    async fn fill(&mut self, room: usize) -> io::Result<bool> {
        self.buffer.reserve(room);
        Ok(self.stream.read_buf(&mut self.buffer).await? > 0)
    }
}

impl Head {
    pub(super) fn new(glance: &Glance, request: &httparse::Request<'_, '_>) -> Head {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = request.headers.iter();
        Head {
            framing: glance.framing,
            last: glance.last,
            waits: glance.waits,
            method: request.method.unwrap_or_default().to_owned(),
            path: request.path.unwrap_or_default().to_owned(),
            headers: headers.map(|header| (header.name.to_owned(), text(header.value))).collect(),
        }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

fn glance(head_len: usize, request: &httparse::Request<'_, '_>) -> io::Result<Glance> {
    let mut framing = Framing::Length(0);
    let mut last = request.version == Some(0);
    let mut waits = false;
    for header in request.headers.iter() {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            let length = length.ok_or_else(|| broken("the content-length is unreadable"))?;
            if length > BODY_BYTES_MAX {
                return Err(broken("the body is too large"));
            }
            // Chunks win over a length, whichever comes first.
            if let Framing::Length(_) = framing {
                framing = Framing::Length(length);
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            framing = Framing::Chunked;
        } else if header.name.eq_ignore_ascii_case("connection") {
            last |= value.eq_ignore_ascii_case(b"close");
        } else if header.name.eq_ignore_ascii_case("expect") {
            waits = true;
        }
    }
    Ok(Glance { head_len, framing, last, waits })
}

fn broken(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn cut_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the request ends within its body")
}
