//! The HTTP client for endpoints. It connects to public addresses alone, follows no redirects, uses
//! no proxy, and reads nothing of a response but its status.

use std::error::Error as _;
use std::net::SocketAddr;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, StatusCode, Url};

use crate::error_chain::error_chain;
use crate::webhooks::address::{WebhookUrl, is_public};

/// The timeout for a connection, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An endpoint must have answered within this time.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A message that is sent.
pub(super) struct OutgoingMessage<'a> {
    pub(super) url: &'a str,
    /// The id, which is the same at each try.
    pub(super) id: &'a str,
    /// When it is sent, in unix seconds.
    pub(super) timestamp: i64,
    pub(super) signatures: &'a str,
    pub(super) body: String,
}

/// Why an endpoint has not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebhookClientError {
    /// The address is none to which messages are sent.
    #[error("{0}")]
    Address(String),
    /// There was no answer in time.
    #[error("no answer within {} s", RESPONSE_TIMEOUT.as_secs())]
    Slow,
    /// There was no connection, or it broke.
    #[error("{0}")]
    Transfer(String),
    /// The client cannot be made.
    #[error("no client for webhooks: {0}")]
    Setup(String),
}

/// The client.
#[derive(Clone)]
pub(crate) struct WebhookClient {
    client: Client,
    allow_private: bool,
}

impl WebhookClient {
    /// Makes the client. With `allow_private` it connects to private addresses too. `ca` are
    /// certificates (PEM) that are trusted beside those of the system.
    pub(crate) fn new(
        allow_private: bool,
        ca: Option<&[u8]>,
    ) -> Result<WebhookClient, WebhookClientError> {
        let setup = |why: &dyn std::fmt::Display| WebhookClientError::Setup(why.to_string());
        let mut client = Client::builder()
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .no_proxy()
            .https_only(true)
            .dns_resolver(PublicResolver { allow_private })
            .pool_max_idle_per_host(0)
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(RESPONSE_TIMEOUT);
        if let Some(pem) = ca {
            let trusted = Certificate::from_pem_bundle(pem).map_err(|why| setup(&why))?;
            client = client.tls_certs_merge(trusted);
        }
        let client = client.build().map_err(|why| setup(&why))?;
        Ok(WebhookClient { client, allow_private })
    }

    /// Sends a message, and returns the status of the response.
    pub(super) async fn send(
        &self,
        message: OutgoingMessage<'_>,
    ) -> Result<StatusCode, WebhookClientError> {
        let url = self.check_url(message.url)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let values = [
            ("webhook-id", message.id.to_owned()),
            ("webhook-timestamp", message.timestamp.to_string()),
            ("webhook-signature", message.signatures.to_owned()),
        ];
        for (name, value) in values {
            let value = HeaderValue::try_from(value);
            let value = value.map_err(|why| WebhookClientError::Transfer(why.to_string()))?;
            headers.insert(name, value);
        }
        let sending = self.client.post(url).headers(headers).body(message.body).send();
        Ok(sending.await.map_err(|why| transfer(&why))?.status())
    }

    /// Checks an address again, as the client reads it: it may have been stored when other
    /// addresses were allowed.
    fn check_url(&self, text: &str) -> Result<Url, WebhookClientError> {
        let refused = |why: &dyn std::fmt::Display| WebhookClientError::Address(why.to_string());
        WebhookUrl::parse(text, self.allow_private).map_err(|why| refused(&why))?;
        let url: Url = text.parse().map_err(|why| refused(&why))?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        match host.parse() {
            Ok(address) if !self.allow_private && !is_public(address) => {
                Err(refused(&format_args!("'{host}' is not a public address")))
            }
            _ => Ok(url),
        }
    }
}

/// Resolves names to public addresses alone. The client connects to what this returns, so a name
/// cannot lead to one address here and to another one there.
struct PublicResolver {
    allow_private: bool,
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow_private = self.allow_private;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> =
                found.filter(|address| allow_private || is_public(address.ip())).collect();
            if allowed.is_empty() {
                return Err("the host has no public address".into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// Tells why a transfer failed, with its causes. The address, which may have a secret, is left out.
fn transfer(why: &reqwest::Error) -> WebhookClientError {
    if why.is_timeout() {
        return WebhookClientError::Slow;
    }
    let what = if why.is_connect() { "no connection" } else { "the transfer broke" };
    let causes = why.source().map(|why| format!(": {}", error_chain(why)));
    WebhookClientError::Transfer(format!("{what}{}", causes.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(allow_private: bool) -> WebhookClient {
        rustls::crypto::ring::default_provider().install_default().ok();
        WebhookClient::new(allow_private, None).expect("a client")
    }

    #[tokio::test]
    async fn a_name_that_leads_to_a_private_address_is_not_resolved() {
        let resolve = |allow_private| async move {
            let name = "localhost".parse().expect("a name");
            let found = PublicResolver { allow_private }.resolve(name).await;
            found.map(Iterator::count).map_err(|why| why.to_string())
        };
        assert_eq!(resolve(false).await, Err("the host has no public address".to_owned()));
        assert!(resolve(true).await.is_ok_and(|count| count > 0));
    }

    #[test]
    fn an_address_is_checked_again_before_it_is_used() {
        let (public, private) = (client(false), client(true));
        for url in ["https://127.0.0.1/", "https://[::ffff:7f00:1]/", "https://localhost/"] {
            assert!(public.check_url(url).is_err(), "{url}");
            assert!(private.check_url(url).is_ok(), "{url}");
        }
        for url in ["http://hooks.example.com/", "", "https://u@hooks.example.com/"] {
            assert!(public.check_url(url).is_err() && private.check_url(url).is_err(), "{url}");
        }
        assert!(public.check_url("https://hooks.example.com/a").is_ok());
    }
}
