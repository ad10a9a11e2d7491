//! The vendor simulator as a program: the demo and the benchmarks start it.

use tokio::signal::unix::{SignalKind, signal};

#[path = "sim.rs"]
mod sim;

const USAGE: &str = "usage: sim --listen 127.0.0.1:9999 [--ca FILE] [--http1]

--ca FILE   where to write the certificate that vouches for it over TLS
--http1     no HTTP/2 over TLS";

#[tokio::main]
async fn main() {
    let Some(words) = Words::read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        std::process::exit(2);
    };
    let protocol = if words.http1 { sim::Protocol::Http1 } else { sim::Protocol::Http2 };
    let simulator = sim::Sim::start_on(&words.listen, protocol).await;
    if let Some(file) = words.ca {
        std::fs::write(&file, simulator.certificate()).expect("a file to write");
    }
    println!("listening on http://{}", simulator.address());
    let mut terminate = signal(SignalKind::terminate()).expect("a SIGTERM listener");
    tokio::select! {
        _ = terminate.recv() => {}
        result = tokio::signal::ctrl_c() => result.expect("a SIGINT listener"),
    }
}

#[derive(Default)]
struct Words {
    listen: String,
    ca: Option<String>,
    http1: bool,
}

impl Words {
    fn read(mut args: impl Iterator<Item = String>) -> Option<Words> {
        let mut words = Words::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--listen" => words.listen = args.next()?,
                "--ca" => words.ca = Some(args.next()?),
                "--http1" => words.http1 = true,
                _ => return None,
            }
        }
        (!words.listen.is_empty()).then_some(words)
    }
}
