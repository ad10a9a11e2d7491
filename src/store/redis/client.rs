//! What all kinds of connections share: their time limits, TLS certificates and socket settings,
//! and how their errors are classified.

use std::pin::Pin;
use std::time::Duration;

use redis::ServerErrorKind;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult};

use super::super::tls::StoreTls;
use crate::ledger::Unavailable;

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for a response. Callers set shorter deadlines of their own.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// A server is treated as gone if its machine does not acknowledge sent data for this long.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) type NodeConnectFuture<'a> =
    Pin<Box<dyn Future<Output = RedisResult<MultiplexedConnection>> + Send + 'a>>;

impl From<RedisError> for Unavailable {
    fn from(why: RedisError) -> Unavailable {
        Unavailable(why.to_string())
    }
}

/// Makes a client for a server, with the TLS certificates if the connection uses TLS.
pub(super) fn build_client(info: ConnectionInfo, tls: &StoreTls) -> RedisResult<Client> {
    let info = info.set_tcp_settings(tcp_settings());
    match (info.addr(), tls.tls_certificates()) {
        (ConnectionAddr::TcpTls { .. }, Some(certificates)) => {
            Client::build_with_tls(info, certificates)
        }
        _ => Client::open(info),
    }
}

/// Returns the socket settings: small writes are sent at once, and a machine that is gone is
/// noticed.
pub(super) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true).set_user_timeout(TCP_USER_TIMEOUT)
}

/// Whether an error means that the connection is lost, or that its server is no longer a master.
pub(super) fn is_master_lost(why: &RedisError) -> bool {
    let read_only = ErrorKind::Server(ServerErrorKind::ReadOnly);
    why.is_io_error() || why.is_connection_dropped() || why.is_timeout() || why.kind() == read_only
}
