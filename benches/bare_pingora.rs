//! The yardstick: pingora as a plain proxy, with nothing of ours in the way.
//!
//! `bare_pingora LISTEN UPSTREAM [CA]`, one worker thread, connections kept open on both sides.
//! With a file of authorities the upstream is reached over TLS, with HTTP/2 if it offers that.

use std::net::SocketAddr;

use async_trait::async_trait;
use pingora::Result;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::{ALPN, HttpPeer};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// As many calls at a time as the gateway puts on a connection.
const STREAMS_MAX: usize = 100;

struct Bare {
    upstream: SocketAddr,
    is_tls: bool,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        let mut peer = HttpPeer::new(self.upstream, self.is_tls, "localhost".to_owned());
        if self.is_tls {
            peer.options.alpn = ALPN::H2H1;
            peer.options.max_h2_streams = STREAMS_MAX;
        }
        Ok(Box::new(peer))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(listen), Some(Ok(upstream))) =
        (arguments.next(), arguments.next().map(|text| text.parse()))
    else {
        eprintln!("usage: bare_pingora LISTEN UPSTREAM [CA]");
        std::process::exit(2);
    };
    let ca_file = arguments.next();
    let is_tls = ca_file.is_some();
    let conf = ServerConf {
        threads: 1,
        upstream_keepalive_pool_size: 512,
        ca_file,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut proxy = http_proxy_service(&server.configuration, Bare { upstream, is_tls });
    proxy.add_tcp(&listen);
    server.add_service(proxy);
    server.run_forever();
}
