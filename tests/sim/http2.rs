//! HTTP/2: each stream is served as a connection with one request, and its answer translated.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::server::TlsStream;

use super::connection;
use super::delivery::After;
use super::record::Record;

const BUFFER_BYTES: usize = 64 << 10;
const HEADERS_MAX: usize = 128;
/// What vendors allow, too.
const STREAMS_MAX: u32 = 100;
/// A reset takes back what was not written yet; so much time is given for that.
const WRITE_TIME: Duration = Duration::from_millis(20);
/// What one connection has no more of over HTTP/2.
const OF_A_CONNECTION: [HeaderName; 3] =
    [CONNECTION, TRANSFER_ENCODING, HeaderName::from_static("keep-alive")];

/// Serves a connection until either side ends it.
pub(super) async fn serve(stream: TlsStream<TcpStream>, record: Arc<Record>) {
    let mut builder = h2::server::Builder::new();
    let handshake = builder.max_concurrent_streams(STREAMS_MAX).handshake(stream);
    let Ok(mut connection) = handshake.await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond, Arc::clone(&record)));
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    record: Arc<Record>,
) {
    let (near, far) = duplex(BUFFER_BYTES);
    let served = tokio::spawn(connection::serve_stream(Box::new(far), record));
    let mut http1 = Http1 { stream: near, buffer: BytesMut::new(), served };
    if http1.send_request(request).await.is_err() {
        return respond.send_reset(Reason::INTERNAL_ERROR);
    }
    let head = tokio::select! {
        head = http1.read_head() => head,
        _ = poll_fn(|context| respond.poll_reset(context)) => return,
    };
    let Ok((response, framing)) = head else {
        return respond.send_reset(Reason::INTERNAL_ERROR);
    };
    let Ok(stream) = respond.send_response(response, framing == Framing::Length(0)) else { return };
    if framing != Framing::Length(0) {
        http1.pass_body(framing, stream).await;
    }
}

/// How the end of an answer's body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// The near end of a connection within this process.
struct Http1 {
    stream: DuplexStream,
    buffer: BytesMut,
    served: JoinHandle<After>,
}

impl Http1 {
    async fn send_request(&mut self, request: Request<RecvStream>) -> io::Result<()> {
        let (head, mut recv) = request.into_parts();
        let mut body = BytesMut::new();
        while let Some(data) = recv.data().await {
            let data = data.map_err(io::Error::other)?;
            recv.flow_control().release_capacity(data.len()).map_err(io::Error::other)?;
            body.extend_from_slice(&data);
        }
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let host = head.uri.authority().map_or("sim", |authority| authority.as_str());
        let mut text = format!("{} {path} HTTP/1.1\r\n", head.method).into_bytes();
        let mut headers = head.headers;
        headers.insert(HOST, HeaderValue::from_str(host).map_err(io::Error::other)?);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        headers.remove(EXPECT);
        for (name, value) in &headers {
            text.extend_from_slice(name.as_str().as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"\r\n");
        self.stream.write_all(&text).await?;
        self.stream.write_all(&body).await
    }

    /// The head of the answer, after those that only announce it.
    async fn read_head(&mut self) -> io::Result<(Response<()>, Framing)> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut parsed = httparse::Response::new(&mut headers);
            match parsed.parse(&self.buffer).map_err(io::Error::other)? {
                httparse::Status::Complete(head_len) => {
                    let status = parsed.code.unwrap_or_default();
                    let answer = (status >= 200).then(|| translate_head(&parsed));
                    self.buffer.advance(head_len);
                    if let Some(answer) = answer {
                        return answer;
                    }
                }
                httparse::Status::Partial => self.fill().await?,
            }
        }
    }

    /// Passes the body on; the stream is reset where it breaks off.
    async fn pass_body(mut self, framing: Framing, mut stream: SendStream<Bytes>) {
        if self.pass_data(framing, &mut stream).await.is_err() {
            tokio::time::sleep(WRITE_TIME).await;
            return stream.send_reset(Reason::INTERNAL_ERROR);
        }
        if !matches!(framing, Framing::Length(_)) {
            // Should the peer be gone, nobody is left to tell.
            let _ = stream.send_data(Bytes::new(), true);
        }
    }

    async fn pass_data(
        &mut self,
        framing: Framing,
        stream: &mut SendStream<Bytes>,
    ) -> io::Result<()> {
        match framing {
            Framing::Length(length) => self.pass(length, stream, true).await,
            Framing::Chunked => loop {
                let (line_len, size) = match httparse::parse_chunk_size(&self.buffer) {
                    Ok(httparse::Status::Complete(found)) => found,
                    Ok(httparse::Status::Partial) => {
                        self.fill_unless_reset(stream).await?;
                        continue;
                    }
                    Err(_) => return Err(io::Error::other("the size of a chunk is unreadable")),
                };
                self.buffer.advance(line_len);
                let size = usize::try_from(size).map_err(io::Error::other)?;
                self.pass(size, stream, false).await?;
                while self.buffer.len() < 2 {
                    self.fill_unless_reset(stream).await?;
                }
                self.buffer.advance(2);
                if size == 0 {
                    return Ok(());
                }
            },
            Framing::UntilClose => loop {
                self.pass(self.buffer.len(), stream, false).await?;
                if self.fill_unless_reset(stream).await.is_err() {
                    let after = (&mut self.served).await.map_err(io::Error::other)?;
                    let ended = matches!(after, After::Keep | After::Close);
                    return ended.then_some(()).ok_or_else(|| io::ErrorKind::BrokenPipe.into());
                }
            },
        }
    }

    /// Passes that many bytes on as they come; the last of them end the stream if `is_all`.
    async fn pass(
        &mut self,
        mut length: usize,
        stream: &mut SendStream<Bytes>,
        is_all: bool,
    ) -> io::Result<()> {
        while length > 0 {
            if self.buffer.is_empty() {
                self.fill_unless_reset(stream).await?;
            }
            let count = self.buffer.len().min(length);
            length -= count;
            let ends = is_all && length == 0;
            send(stream, self.buffer.split_to(count).freeze(), ends).await?;
        }
        Ok(())
    }

    async fn fill_unless_reset(&mut self, stream: &mut SendStream<Bytes>) -> io::Result<()> {
        tokio::select! {
            filled = self.fill() => filled,
            _ = poll_fn(|context| stream.poll_reset(context)) => {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        self.buffer.reserve(BUFFER_BYTES);
        let count = self.stream.read_buf(&mut self.buffer).await?;
        if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

fn translate_head(parsed: &httparse::Response<'_, '_>) -> io::Result<(Response<()>, Framing)> {
    let mut response = Response::new(());
    *response.status_mut() =
        parsed.code.unwrap_or_default().try_into().map_err(io::Error::other)?;
    let headers = response.headers_mut();
    for header in parsed.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(io::Error::other)?;
        headers.append(name, HeaderValue::from_bytes(header.value).map_err(io::Error::other)?);
    }
    let framing = framing(headers)?;
    for name in OF_A_CONNECTION {
        headers.remove(name);
    }
    Ok((response, framing))
}

fn framing(headers: &HeaderMap) -> io::Result<Framing> {
    if headers.contains_key(TRANSFER_ENCODING) {
        return Ok(Framing::Chunked);
    }
    let Some(length) = headers.get(CONTENT_LENGTH) else { return Ok(Framing::UntilClose) };
    let length = length.to_str().map_err(io::Error::other)?;
    Ok(Framing::Length(length.parse().map_err(io::Error::other)?))
}

/// Sends data as fast as the peer takes it, perhaps as the last of a stream.
async fn send(stream: &mut SendStream<Bytes>, mut data: Bytes, ends: bool) -> io::Result<()> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = poll_fn(|context| stream.poll_capacity(context)).await;
        let room = room.ok_or(io::ErrorKind::BrokenPipe)?.map_err(io::Error::other)?;
        let piece = data.split_to(room.min(data.len()));
        stream.send_data(piece, ends && data.is_empty()).map_err(io::Error::other)?;
    }
    Ok(())
}
