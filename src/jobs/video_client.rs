//! HTTP client of the vendors that make videos: submits a job, polls it, and fetches the file.

use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::TryStreamExt as _;
use reqwest::header::{
    ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING,
};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, ClientBuilder, Identity, Response, StatusCode, Url};

use crate::catalogue::Vendor;
use crate::catalogue::route::{BaseUrl, RouteSection};
use crate::catalogue::route_tls::RouteTlsFiles;
use crate::catalogue::{VendorKey, VendorModelNames, route};
use crate::dialect::vendor_error;
use crate::dialect::videos::{self, VideoProgress, VideoRefusal};
use crate::error_chain::error_chain;
use crate::traces::context::TRACEPARENT;

/// The timeout for a connection, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout for the download of a whole file.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// The largest answer of a vendor about a job, in bytes. A longer one is not read.
const RESPONSE_BYTES_MAX: usize = 1 << 20;
/// A file whose content type begins with one of these may be a video. The storage of vendors does
/// not always send a more exact type.
const VIDEO_CONTENT_TYPES: [&str; 4] =
    ["video/", "application/octet-stream", "binary/octet-stream", "application/mp4"];
/// A longer `retry-after` of a vendor is cut to this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// A route to a vendor that makes videos.
pub(crate) struct VideoRoute {
    /// The vendor's token.
    pub vendor: String,
    /// The route's name.
    pub name: String,
    base: BaseUrl,
    key: VendorKey,
    section: RouteSection,
    model_names: VendorModelNames,
    file_hosts: Vec<String>,
    clients: Option<HttpClients>,
}

impl VideoRoute {
    /// Makes the route of this configuration section, with its key.
    #[must_use]
    pub(crate) fn new(
        section: &RouteSection,
        naming: &VendorModelNames,
        key: VendorKey,
        file_hosts: &[String],
    ) -> VideoRoute {
        VideoRoute {
            vendor: naming.vendor.clone(),
            name: section.name.clone(),
            base: section.base_url.clone(),
            key,
            section: section.clone(),
            model_names: naming.clone(),
            file_hosts: file_hosts.to_vec(),
            clients: None,
        }
    }

    /// Returns the name that the vendor has for a model on this route.
    #[must_use]
    pub(crate) fn vendor_model<'a>(&self, id: &'a str) -> std::borrow::Cow<'a, str> {
        self.section.vendor_model_name(&self.model_names, id)
    }

    /// Returns the name of the vendor in traces.
    #[must_use]
    pub(crate) fn provider(&self) -> &str {
        self.model_names.provider()
    }

    /// Returns the host and the port of the vendor.
    #[must_use]
    pub(crate) fn address(&self) -> (&str, u16) {
        (&self.base.host, self.base.port)
    }

    fn url(&self, path: &str) -> String {
        let scheme = if self.base.tls { "https" } else { "http" };
        format!("{scheme}://{}{}{path}", self.base.authority(), self.base.path)
    }

    /// Whether a finished video may be fetched from this URL. Only hosts of the vendor are allowed,
    /// so that no answer can make the gateway send requests to other hosts.
    fn may_fetch(&self, url: &Url) -> bool {
        let is_secure = url.scheme() == "https" || (url.scheme() == "http" && !self.base.tls);
        let has_no_credentials = url.username().is_empty() && url.password().is_none();
        let Some(host) = url.host_str() else { return false };
        let host = host.trim_matches(['[', ']']).trim_end_matches('.');
        let is_default_https = url.scheme() == "https" && url.port().is_none();
        let is_allowed_port =
            is_default_https || url.port_or_known_default() == Some(self.base.port);
        let is_near =
            is_allowed_port && route::is_same_domain(host, &self.base.host.to_ascii_lowercase());
        is_secure
            && has_no_credentials
            && (is_near || self.file_hosts.iter().any(|known| known == host))
    }
}

/// The result of submitting a job.
#[derive(Debug)]
pub(crate) enum SubmitOutcome {
    /// The vendor accepted the job under this id.
    Accepted(String),
    /// The vendor refused the job for good.
    Refused(VideoRefusal),
    /// The vendor has not begun any work, and the job may be sent again. The value is the vendor's
    /// `retry-after`.
    Busy(Option<Duration>),
    /// The vendor has not begun any work: it refuses the gateway's key, or the gateway's vendor
    /// account has no credit.
    Denied(StatusCode),
    /// It is unknown whether the vendor received the job. The value is the reason.
    Unknown(String),
}

/// The result of polling a job.
#[derive(Debug)]
pub(crate) enum PollOutcome {
    /// The vendor reported the state of the job.
    Progress(VideoProgress),
    /// The vendor does not know the job.
    NotFound,
    /// There was no answer, or none that could be read. The value is the vendor's `retry-after`.
    NoAnswer(Option<Duration>),
}

/// Why a file cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The file is on a host that is not the vendor's.
    #[error("it is on a host that is not the vendor's: {0}; file_hosts may name it")]
    ForeignHost(String),
    /// The host answered with another status than 200.
    #[error("its host answered {0}")]
    Status(StatusCode),
    /// The answer is not a video: it has this content type, or no framing.
    #[error("its host answered with {0}")]
    NotVideo(String),
    /// The transfer broke.
    #[error(transparent)]
    Transfer(#[from] reqwest::Error),
}

/// The HTTP client of the vendors that make videos.
pub(crate) struct VideoClient {
    routes: Vec<VideoRoute>,
    /// The connections for all routes that have no TLS settings of their own.
    clients: HttpClients,
    answer_timeout: Duration,
}

/// Two HTTP clients with the same TLS settings.
struct HttpClients {
    /// Opens a new connection for each call. If a call breaks on a kept connection, the vendor may
    /// have received it or not. If a new connection cannot be opened, the vendor has not received
    /// it.
    unpooled: Client,
    pooled: Client,
}

/// Why the client cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VideoClientError {
    /// A TLS file of a route cannot be read.
    #[error("cannot read '{0}': {1}")]
    File(String, std::io::Error),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] reqwest::Error),
}

impl HttpClients {
    fn new(
        tls: Option<&RouteTlsFiles>,
        answer_timeout: Duration,
    ) -> Result<HttpClients, VideoClientError> {
        let unpooled = client_builder(tls)?.pool_max_idle_per_host(0).http1_only().build()?;
        let pooled = client_builder(tls)?.read_timeout(answer_timeout).build()?;
        Ok(HttpClients { unpooled, pooled })
    }
}

fn client_builder(tls: Option<&RouteTlsFiles>) -> Result<ClientBuilder, VideoClientError> {
    let mut client = Client::builder()
        .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT);
    let read = |path: &String| {
        std::fs::read(path).map_err(|why| VideoClientError::File(path.clone(), why))
    };
    if let Some(path) = tls.and_then(|tls| tls.ca.as_ref()) {
        client = client.tls_certs_only(Certificate::from_pem_bundle(&read(path)?)?);
    }
    if let Some(files) = tls.and_then(|tls| tls.client.as_ref()) {
        let pem = [read(&files.key)?, b"\n".to_vec(), read(&files.cert)?].concat();
        client = client.identity(Identity::from_pem(&pem)?);
    }
    Ok(client)
}

impl VideoClient {
    /// Makes the HTTP clients of all routes.
    ///
    /// # Errors
    /// See [`VideoClientError`].
    pub(crate) fn new(
        mut routes: Vec<VideoRoute>,
        answer_timeout: Duration,
    ) -> Result<VideoClient, VideoClientError> {
        for route in &mut routes {
            let tls = route.section.tls.as_ref();
            route.clients =
                tls.map(|tls| HttpClients::new(Some(tls), answer_timeout)).transpose()?;
        }
        Ok(VideoClient { routes, clients: HttpClients::new(None, answer_timeout)?, answer_timeout })
    }

    fn clients_for<'a>(&'a self, route: &'a VideoRoute) -> &'a HttpClients {
        route.clients.as_ref().unwrap_or(&self.clients)
    }

    /// Returns the routes to a vendor, in order of preference.
    pub(crate) fn routes<'a>(&'a self, vendor: &'a str) -> impl Iterator<Item = &'a VideoRoute> {
        self.routes.iter().filter(move |route| route.vendor == vendor)
    }

    /// Returns the route with this name.
    #[must_use]
    pub(crate) fn find_route(&self, vendor: &str, name: &str) -> Option<&VideoRoute> {
        self.routes.iter().find(|route| route.vendor == vendor && route.name == name)
    }

    /// Sends a job to the vendor, once; with this `traceparent` if it is traced.
    pub(crate) async fn submit(
        &self,
        route: &VideoRoute,
        vendor: &Vendor,
        body: Bytes,
        trace: Option<String>,
    ) -> SubmitOutcome {
        let Some(headers) = auth_headers(route, vendor) else {
            return SubmitOutcome::Denied(StatusCode::UNAUTHORIZED);
        };
        let post = self
            .clients_for(route)
            .unpooled
            .post(route.url("/videos/generations"))
            .headers(headers);
        let post = post.header(CONTENT_TYPE, "application/json").body(body);
        let post = match trace {
            Some(parent) => post.header(TRACEPARENT, parent),
            None => post,
        };
        let response = match post.timeout(self.answer_timeout).send().await {
            Ok(response) => response,
            Err(why) if why.is_connect() || why.is_builder() => {
                log::warn!(
                    event = "upstream_connect_failed", route = route.name,
                    error:% = error_chain(&why.without_url());
                    "upstream connect failed"
                );
                return SubmitOutcome::Busy(None);
            }
            Err(why) => return SubmitOutcome::Unknown(error_chain(&why.without_url())),
        };
        let (status, wait) = (response.status(), retry_after(&response));
        let body = read_response(response, route).await.unwrap_or_default();
        match status.as_u16() {
            200..=299 => match videos::parse_submitted_id(&body) {
                Some(id) => SubmitOutcome::Accepted(id),
                None => SubmitOutcome::Unknown(format!("{status} without an id")),
            },
            429 | 503 | 529 => SubmitOutcome::Busy(wait),
            // The rules of the vendor tell by the body that the gateway's key is refused, whatever
            // the status is.
            status if vendor.failover.matches_body(status, &body) => {
                SubmitOutcome::Denied(StatusCode::UNAUTHORIZED)
            }
            400 | 403 | 404 | 413 | 415 | 422 => {
                let refused = videos::parse_refusal(status.as_u16(), &body);
                let is_denied = status == StatusCode::FORBIDDEN && !refused.is_blocked;
                if is_denied {
                    SubmitOutcome::Denied(status)
                } else {
                    SubmitOutcome::Refused(refused)
                }
            }
            401 | 402 => SubmitOutcome::Denied(status),
            _ => SubmitOutcome::Unknown(status.to_string()),
        }
    }

    /// Asks the vendor for the state of a job.
    pub(crate) async fn poll(
        &self,
        route: &VideoRoute,
        vendor: &Vendor,
        vendor_id: &str,
    ) -> PollOutcome {
        let Some(headers) = auth_headers(route, vendor) else { return PollOutcome::NoAnswer(None) };
        let get = self
            .clients_for(route)
            .pooled
            .get(route.url(&format!("/videos/{vendor_id}")))
            .headers(headers);
        let response = match get.timeout(self.answer_timeout).send().await {
            Ok(response) => response,
            Err(why) => {
                log::warn!(
                    event = "video_poll_failed", route = route.name, vendor_id,
                error:% = error_chain(&why.without_url());
                    "video poll failed"
                );
                return PollOutcome::NoAnswer(None);
            }
        };
        let (status, wait) = (response.status(), retry_after(&response));
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
            return PollOutcome::NotFound;
        }
        let body = read_response(response, route).await.unwrap_or_default();
        if let Some(polled) = videos::parse_progress(status.as_u16(), &body) {
            return PollOutcome::Progress(polled);
        }
        log::warn!(
            event = "video_poll_failed", route = route.name, vendor_id, status = status.as_u16();
            "video poll failed"
        );
        PollOutcome::NoAnswer(wait)
    }

    /// Fetches a finished video. The request has no API key, and no redirect is followed.
    ///
    /// # Errors
    /// See [`FetchError`]; the stream of pieces may end with one too.
    pub(crate) async fn fetch(
        &self,
        route: &VideoRoute,
        url: &str,
    ) -> Result<impl Stream<Item = Result<Bytes, FetchError>> + Send + use<>, FetchError> {
        // Only the host is named in the error, which is logged: the rest of the URL may give access
        // to the file.
        let elsewhere = |host: &str| FetchError::ForeignHost(host.to_owned());
        let url = Url::parse(url).map_err(|_| elsewhere("none"))?;
        if !route.may_fetch(&url) {
            return Err(elsewhere(url.host_str().unwrap_or("none")));
        }
        // Other hosts than the route's own are verified by the system's certificate authorities,
        // not by the TLS settings of the route.
        let is_its_own = url.host_str() == Some(route.base.host.as_str());
        let clients = if is_its_own { self.clients_for(route) } else { &self.clients };
        let sending = clients.pooled.get(url).timeout(DOWNLOAD_TIMEOUT).send();
        let response = sending.await.map_err(reqwest::Error::without_url)?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status()));
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_ascii_lowercase();
        if !kind.is_empty() && !VIDEO_CONTENT_TYPES.iter().any(|known| kind.starts_with(known)) {
            return Err(FetchError::NotVideo(kind));
        }
        // A body that is delimited only by the end of the connection may have been truncated
        // unnoticed.
        let framed = response.headers().contains_key(TRANSFER_ENCODING)
            || response.content_length().is_some()
            || response.version() == reqwest::Version::HTTP_2;
        if !framed {
            return Err(FetchError::NotVideo("a body of no told length".to_owned()));
        }
        let pieces = response.bytes_stream();
        Ok(pieces.map_err(|why| FetchError::Transfer(why.without_url())))
    }
}

fn auth_headers(route: &VideoRoute, vendor: &Vendor) -> Option<HeaderMap> {
    let key = match &vendor.auth_scheme {
        Some(scheme) => format!("{scheme} {}", route.key.reveal()),
        None => route.key.reveal().to_string(),
    };
    let mut key = HeaderValue::try_from(key).ok()?;
    key.set_sensitive(true);
    let mut headers = HeaderMap::new();
    headers.insert(HeaderName::from_bytes(vendor.auth_header.as_bytes()).ok()?, key);
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    Some(headers)
}

/// Reads the body of an answer and removes the gateway's key from it. `None` if the body broke or
/// is too long.
async fn read_response(mut response: Response, route: &VideoRoute) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.ok()? {
        if body.len() + piece.len() > RESPONSE_BYTES_MAX {
            return None;
        }
        body.extend_from_slice(&piece);
    }
    for key in route.key.secrets() {
        body = vendor_error::redact_key(&body, &key).into_owned();
    }
    Some(body)
}

/// Returns the vendor's `retry-after`; `None` if there is none in seconds. The date form is
/// ignored.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}
