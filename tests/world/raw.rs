//! HTTP without a client library, for requests that no library would send.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connection on which nothing came for so long is at its end.
const SILENCE: Duration = Duration::from_secs(2);

/// An answer as its bytes say it.
#[derive(Debug)]
pub(crate) struct RawAnswer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    /// The body, its chunks joined.
    pub(crate) body: Vec<u8>,
    /// Whether all of the body came.
    pub(crate) whole: bool,
}

impl RawAnswer {
    /// The first header of a name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Sends bytes and reads until the peer closes or falls silent.
pub(super) async fn exchange(address: &str, bytes: &[u8]) -> Vec<RawAnswer> {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let (mut read, mut write) = stream.split();
    let mut all = Vec::new();
    let sending = async {
        // A gateway that has answered early need not take the rest.
        let _ = write.write_all(bytes).await;
        std::future::pending::<()>().await;
    };
    let reading = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(Ok(count @ 1..)) = timeout(SILENCE, read.read(&mut buffer)).await {
            all.extend_from_slice(&buffer[..count]);
            let parsed = parse(&all);
            // No need to wait for a silence after an answer that closes the connection anyway.
            if parsed.last().is_some_and(|a| a.whole && a.header("connection") == Some("close")) {
                return;
            }
        }
    };
    tokio::select! { () = sending => {}, () = reading => {} }
    parse(&all)
}

/// The answers in these bytes, the last of which may not be whole.
pub(crate) fn parse(mut bytes: &[u8]) -> Vec<RawAnswer> {
    let mut answers = Vec::new();
    while let Some((answer, length)) = one(bytes) {
        bytes = &bytes[length..];
        // A 100 only says that the body may come.
        if answer.status >= 200 {
            answers.push(answer);
        }
    }
    answers
}

fn one(bytes: &[u8]) -> Option<(RawAnswer, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(start)) = head.parse(bytes) else { return None };
    let named = |h: &httparse::Header<'_>| {
        (h.name.to_owned(), String::from_utf8_lossy(h.value).into_owned())
    };
    let headers = head.headers.iter().map(named).collect();
    let status = head.code.expect("a parsed head has a status");
    let mut answer = RawAnswer { status, headers, body: Vec::new(), whole: false };
    let rest = &bytes[start..];
    let length = if answer.header("transfer-encoding").is_some() {
        chunks(rest, &mut answer)
    } else {
        let told = answer.header("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
        let length = rest.len().min(told);
        answer.body = rest[..length].to_vec();
        answer.whole = length == told;
        length
    };
    Some((answer, start + length))
}

fn chunks(bytes: &[u8], answer: &mut RawAnswer) -> usize {
    let mut at = 0;
    while let Ok(httparse::Status::Complete((line, size))) =
        httparse::parse_chunk_size(&bytes[at..])
    {
        let size = usize::try_from(size).expect("a chunk fits into memory");
        let Some(chunk) = bytes.get(at + line..at + line + size) else { break };
        answer.body.extend_from_slice(chunk);
        at = (at + line + size + 2).min(bytes.len());
        if size == 0 {
            answer.whole = true;
            break;
        }
    }
    at
}
