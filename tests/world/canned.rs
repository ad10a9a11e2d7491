//! A vendor that says what it is told to, byte for byte, and remembers who asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// The requests that were read, head and body.
type Heard = Arc<Mutex<Vec<Vec<u8>>>>;

/// See the module; it stops when dropped.
pub(crate) struct Canned {
    /// Its base url.
    pub(crate) url: String,
    heard: Heard,
    connections: Arc<AtomicUsize>,
    accepting: AbortHandle,
}

impl Canned {
    /// Answers every request with these bytes. A connection serves so many requests; the next one
    /// on it is read and the connection closed, as a vendor does that is tired of waiting.
    pub(crate) async fn start(answer: Vec<u8>, requests_max: usize) -> Canned {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/v1", listener.local_addr().expect("its address"));
        let heard = Heard::default();
        let connections = Arc::new(AtomicUsize::new(0));
        let (all, opened) = (heard.clone(), connections.clone());
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                opened.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream, answer.clone(), requests_max, all.clone()));
            }
        });
        Canned { url, heard, connections, accepting: accepting.abort_handle() }
    }

    /// A chat reply with this `usage`.
    pub(crate) async fn with_usage(usage: &str) -> Canned {
        let message = r#"{"role":"assistant","content":"four"}"#;
        let choice = format!(r#"{{"index":0,"message":{message},"finish_reason":"stop"}}"#);
        let body = format!(r#"{{"id":"c","choices":[{choice}],"usage":{usage}}}"#);
        Canned::start(http(&body), usize::MAX).await
    }

    /// How many calls it has read.
    pub(crate) fn heard(&self) -> usize {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// A request that it has read, head and body.
    pub(crate) fn request(&self, number: usize) -> String {
        String::from_utf8(self.bytes(number)).expect("a request is text")
    }

    /// The same, whose body may be no text.
    pub(crate) fn bytes(&self, number: usize) -> Vec<u8> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)[number].clone()
    }

    /// How many connections were made to it.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Canned {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A 200 with a JSON body.
pub(crate) fn http(body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json";
    format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// A 200 with events, complete.
pub(crate) fn events(body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream";
    format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

async fn serve(mut stream: TcpStream, answer: Vec<u8>, requests_max: usize, heard: Heard) {
    for number in 0.. {
        let Some(request) = request(&mut stream).await else { return };
        // The gateway asks by itself how a vendor is that fails.
        if !request.starts_with(b"GET ") {
            heard.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        }
        if number == requests_max || stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// Reads a request with a content-length; none when there is none any more.
async fn request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Request::new(&mut headers);
        if let Ok(httparse::Status::Complete(start)) = head.parse(&bytes) {
            let named = head.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
            let length = named.and_then(|h| std::str::from_utf8(h.value).ok()?.parse().ok());
            if bytes.len() >= start + length.unwrap_or(0) {
                return Some(bytes);
            }
        }
        if !matches!(stream.read_buf(&mut bytes).await, Ok(1..)) {
            return None;
        }
    }
}
