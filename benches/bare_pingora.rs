//! The yardstick: pingora as a plain proxy, with nothing of ours in the way.
//!
//! `bare_pingora LISTEN UPSTREAM`, one worker thread, connections kept open on both sides.

use std::net::SocketAddr;

use async_trait::async_trait;
use pingora::Result;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

struct Bare {
    upstream: SocketAddr,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.upstream, false, String::new())))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(listen), Some(Ok(upstream))) =
        (arguments.next(), arguments.next().map(|text| text.parse()))
    else {
        eprintln!("usage: bare_pingora LISTEN UPSTREAM");
        std::process::exit(2);
    };
    let conf =
        ServerConf { threads: 1, upstream_keepalive_pool_size: 512, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut proxy = http_proxy_service(&server.configuration, Bare { upstream });
    proxy.add_tcp(&listen);
    server.add_service(proxy);
    server.run_forever();
}
