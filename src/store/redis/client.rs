//! What the connections of all kinds have in common: their time limits, certificates and sockets,
//! and what their errors say.

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
/// A server whose machine says nothing to what was sent is gone after so long.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) type NodeConnectFuture<'a> =
    Pin<Box<dyn Future<Output = RedisResult<MultiplexedConnection>> + Send + 'a>>;

impl From<RedisError> for Unavailable {
    fn from(why: RedisError) -> Unavailable {
        Unavailable(why.to_string())
    }
}

/// Whom to connect to, with the certificates that go with it.
pub(super) fn build_client(info: ConnectionInfo, tls: &StoreTls) -> RedisResult<Client> {
    let info = info.set_tcp_settings(tcp_settings());
    match (info.addr(), tls.tls_certificates()) {
        (ConnectionAddr::TcpTls { .. }, Some(certificates)) => {
            Client::build_with_tls(info, certificates)
        }
        _ => Client::open(info),
    }
}

/// Small writes go out at once, and a machine that is gone is noticed.
pub(super) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true).set_user_timeout(TCP_USER_TIMEOUT)
}

/// Whether an error says that the connection is gone, or that its end is no master any more.
pub(super) fn is_master_lost(why: &RedisError) -> bool {
    let read_only = ErrorKind::Server(ServerErrorKind::ReadOnly);
    why.is_io_error() || why.is_connection_dropped() || why.is_timeout() || why.kind() == read_only
}
