//! Requests to the identity provider. Each response comes within a time and a size, redirects are
//! not followed, and a provider that speaks TLS is asked over TLS alone.

use std::pin::Pin;
use std::time::Duration;

use http::Uri;
use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};
use reqwest::Client;
use reqwest::redirect::Policy;

use crate::conf::is_loopback_host;

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
    let mut causes = Vec::new();
    let mut cause = std::error::Error::source(why);
    while let Some(found) = cause {
        causes.push(found.to_string());
        cause = found.source();
    }
    let what = if why.is_connect() { "no connection" } else { "the transfer broke" };
    causes.insert(0, what.to_owned());
    ProviderHttpError::Transfer(causes.join(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

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
