//! Requests to the identity provider. Each response comes within a time and a size, redirects are
//! not followed, and a provider that speaks TLS is asked over TLS alone.

use std::error::Error as _;
use std::pin::Pin;
use std::time::Duration;

use http::Uri;
use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};
use reqwest::Client;
use reqwest::redirect::Policy;

use crate::conf::is_loopback_host;
use crate::error_chain::error_chain;

/// A response must have come within this time.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for a connection, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of a response.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Why a request to the provider has no usable response.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProviderHttpError {
    /// The address is not one to which secrets may be sent.
    #[error("{0} is no address with https")]
    Insecure(String),
    /// The response did not come in time.
    #[error("no whole answer within {} s", RESPONSE_TIMEOUT.as_secs())]
    Slow,
    /// The response is too large.
    #[error("the answer has more than {RESPONSE_BYTES_MAX} bytes")]
    TooLarge,
    /// The response sends on to another address.
    #[error("the answer is a redirect ({0}), which is not followed")]
    Redirect(u16),
    /// The provider has trouble of its own.
    #[error("the answer has the status {0}")]
    Status(u16),
    /// There was no connection, or it broke.
    #[error("{0}")]
    Transfer(String),
}

/// The HTTP client for a provider.
pub(super) struct ProviderHttp {
    client: Client,
    /// Whether the provider is on this machine and speaks no TLS.
    is_plain: bool,
}

impl ProviderHttp {
    /// Makes the client for a provider whose addresses begin like `issuer`.
    pub(super) fn new(issuer: &str) -> Result<ProviderHttp, ProviderHttpError> {
        let client = Client::builder()
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .no_proxy()
            // A connection that a provider closes just when it is used again would end a sign-in.
            .pool_max_idle_per_host(0)
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(RESPONSE_TIMEOUT)
            .build();
        let client = client.map_err(|why| transfer(&why))?;
        Ok(ProviderHttp { client, is_plain: issuer.starts_with("http://") })
    }

    /// Checks that an address may be used.
    pub(super) fn check_address(&self, address: &str) -> Result<(), ProviderHttpError> {
        let uri = address.parse::<Uri>().ok();
        let is_allowed = uri.is_some_and(|uri| match (uri.scheme_str(), uri.host()) {
            (Some("https"), Some(_)) => true,
            (Some("http"), Some(host)) => self.is_plain && is_loopback_host(host),
            _ => false,
        });
        let shown = || address.chars().take(200).collect();
        if is_allowed { Ok(()) } else { Err(ProviderHttpError::Insecure(shown())) }
    }

    /// Sends a request, and reads its response within the bounds.
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, ProviderHttpError> {
        self.check_address(&request.uri().to_string())?;
        let request = reqwest::Request::try_from(request).map_err(|why| transfer(&why))?;
        let mut response = self.client.execute(request).await.map_err(|why| transfer(&why))?;
        if response.status().is_redirection() {
            return Err(ProviderHttpError::Redirect(response.status().as_u16()));
        }
        if response.status().is_server_error() {
            return Err(ProviderHttpError::Status(response.status().as_u16()));
        }
        let mut whole = HttpResponse::new(Vec::new());
        *whole.status_mut() = response.status();
        *whole.headers_mut() = response.headers().clone();
        while let Some(chunk) = response.chunk().await.map_err(|why| transfer(&why))? {
            if whole.body().len().saturating_add(chunk.len()) > RESPONSE_BYTES_MAX {
                return Err(ProviderHttpError::TooLarge);
            }
            whole.body_mut().extend_from_slice(&chunk);
        }
        Ok(whole)
    }
}

impl<'c> AsyncHttpClient<'c> for ProviderHttp {
    type Error = ProviderHttpError;
    type Future =
        Pin<Box<dyn Future<Output = Result<HttpResponse, ProviderHttpError>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.send(request))
    }
}

/// Tells why a transfer failed, with its causes. The address, which may have a secret, is left out.
fn transfer(why: &reqwest::Error) -> ProviderHttpError {
    if why.is_timeout() {
        return ProviderHttpError::Slow;
    }
    let what = if why.is_connect() { "no connection" } else { "the transfer broke" };
    let causes = why.source().map(|why| format!(": {}", error_chain(why)));
    ProviderHttpError::Transfer(format!("{what}{}", causes.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Node closes a connection that is idle for five seconds: at the wrong moment, a reset.
    #[tokio::test]
    async fn a_sign_in_failed_when_the_provider_closed_an_idle_connection() {
        rustls::crypto::ring::default_provider().install_default().ok();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let issuer = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    assert!(connection.read(&mut request).await.expect("a request") > 0);
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    connection.write_all(answer).await.expect("an answer");
                    // Whatever comes next on this connection finds it closed.
                    let _ = connection.read_u8().await;
                });
            }
        });
        let http = ProviderHttp::new(&issuer).expect("a client");
        for _ in 0..3 {
            let mut request = HttpRequest::new(Vec::new());
            *request.uri_mut() = format!("{issuer}/userinfo").parse().expect("an address");
            let response = http.send(request).await.expect("a response");
            assert_eq!(response.body(), b"{}");
        }
    }

    #[test]
    fn a_provider_with_tls_has_no_address_without() {
        rustls::crypto::ring::default_provider().install_default().ok();
        let of = |issuer: &str, address: &str| {
            let http = ProviderHttp::new(issuer).expect("a client");
            http.check_address(address).is_ok()
        };
        let (secure, plain) = ("https://id.example.com", "http://127.0.0.1:4000");
        assert!(of(secure, "https://keys.example.com/jwks"));
        assert!(!of(secure, "http://127.0.0.1:4000/jwks"));
        assert!(of(plain, "http://localhost:4000/jwks") && of(plain, "https://a.example/jwks"));
        assert!(!of(plain, "http://id.example.com/jwks"));
        assert!(!of(plain, "ftp://127.0.0.1/jwks") && !of(plain, "/jwks") && !of(plain, ""));
    }
}
