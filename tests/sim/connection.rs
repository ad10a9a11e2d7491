//! The life of a connection: one request after another.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::answer::answer;
use super::control;
use super::delivery::After;
use super::fast;
use super::http2;
use super::models;
use super::record::Record;
use super::tls;
use super::vendor::Vendor;
use super::wire::{Framing, Glance, Head, Transport, Wire};

/// Serves a connection until either side ends it. Whether it uses TLS shows in its first byte.
pub(super) async fn serve(stream: TcpStream, record: Arc<Record>, acceptor: TlsAcceptor) {
    // Without it small writes would wait for one another, and hide what a fault cuts in pieces.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    record.connections.fetch_add(1, Ordering::Relaxed);
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1..) if first == [tls::HANDSHAKE] => {}
        Ok(1..) => {
            serve_stream(Box::new(stream), record).await;
            return;
        }
        _ => return,
    }
    let Ok(stream) = acceptor.accept(stream).await else { return };
    if stream.get_ref().1.alpn_protocol() == Some(tls::HTTP2) {
        return http2::serve(stream, record).await;
    }
    serve_stream(Box::new(stream), record).await;
}

/// Serves one request after another; how the last of them ended.
pub(super) async fn serve_stream(stream: Box<dyn Transport>, record: Arc<Record>) -> After {
    let mut wire = Wire::new(stream);
    let mut scratch = BytesMut::new();
    loop {
        match exchange(&mut wire, &record, &mut scratch).await {
            Ok(After::Keep) => {}
            Ok(After::Close) => {
                wire.close().await;
                return After::Close;
            }
            Ok(After::Reset) => {
                wire.reset();
                return After::Reset;
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::InvalidData {
                    // Should the peer not listen any more, there is nobody left to tell.
                    let _ = wire.write(refusal(&error).as_bytes()).await;
                }
                return After::Close;
            }
        }
    }
}

enum Arrival {
    Fast(Vendor, Glance),
    Ordinary(usize, Head),
}

async fn exchange(wire: &mut Wire, record: &Record, scratch: &mut BytesMut) -> io::Result<After> {
    let arrival = wire.look(|glance, request| match fast::vendor(request) {
        Some(vendor) => Arrival::Fast(vendor, glance),
        None => Arrival::Ordinary(glance.head_len, Head::new(&glance, request)),
    });
    let (head_len, head) = match arrival.await? {
        None => return Ok(After::Close),
        Some(Arrival::Fast(vendor, glance)) => {
            record.add_one(vendor);
            return fast::answer(wire, vendor, &glance, scratch).await;
        }
        Some(Arrival::Ordinary(head_len, head)) => (head_len, head),
    };
    wire.enter_body(head_len, head.waits).await?;
    let body = match head.framing {
        Framing::Length(length) => {
            let length = usize::try_from(length).expect("a bounded length");
            wire.body_in_place(length).await?
        }
        Framing::Chunked => {
            let mut body = BytesMut::new();
            wire.body_in_chunks(&mut body).await?;
            body
        }
    };
    let last = head.last;
    if let Some(answer) = control::answer(&head.path, record) {
        wire.write(answer.as_bytes()).await?;
        return Ok(if last { After::Close } else { After::Keep });
    }
    if let Some(list) = models::List::asked(&head, record) {
        return match list.answer(wire).await? {
            After::Keep if last => Ok(After::Close),
            after => Ok(after),
        };
    }
    match answer(wire, record, head, body.freeze()).await? {
        After::Keep if last => Ok(After::Close),
        after => Ok(after),
    }
}

fn refusal(error: &io::Error) -> String {
    let reason = error.to_string();
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{reason}",
        reason.len()
    )
}
