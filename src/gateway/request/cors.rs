//! Cross-origin requests (CORS): tells browsers the pages that may call the gateway. Credentials
//! that a browser adds by itself, such as cookies, are never allowed.

use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use pingora::http::RequestHeader;

use crate::gateway::local_response::LocalResponse;
use crate::gateway::response_head::ResponseHead;

/// The setting that allows every origin except `null`.
const ANY: &str = "*";
/// The origin of pages that have none, such as files and sandboxes.
const NULL: &str = "null";
/// An answer depends on this header of its request.
const VARIES_BY: HeaderValue = HeaderValue::from_static("origin");
/// The request headers that a page may always send. It may send all others that it asks for.
const REQUEST_HEADERS: &str = "authorization, x-api-key, content-type, idempotency-key";
/// A browser may keep the answer to a preflight for this many seconds. No browser keeps it longer.
const MAX_AGE_S: u32 = 7_200;

/// The origins whose pages may call the gateway. Without any, no answer speaks of origins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CorsOrigins(Vec<String>);

impl CorsOrigins {
    /// Adds an origin as browsers send it, `*` for any, or `null`.
    ///
    /// # Errors
    /// A text that says why no browser sends this origin.
    pub(crate) fn add(&mut self, origin: &str) -> Result<(), String> {
        if !matches!(origin, ANY | NULL)
            && let Err(why) = check_origin(origin)
        {
            let expected = "no origin as browsers send it, such as \"https://app.example\"";
            return Err(format!("'{origin}' is {expected}: {why}"));
        }
        self.0.push(origin.to_owned());
        Ok(())
    }

    /// Returns what the answer to a request with these headers tells a browser.
    #[must_use]
    pub(crate) fn grant(&self, headers: &HeaderMap) -> CorsGrant {
        if self.0.is_empty() {
            return CorsGrant::Off;
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        let (Some(origin), None) = (origins.next(), origins.next()) else {
            return CorsGrant::Refused;
        };
        let is_listed = |origin: &str| self.0.iter().any(|listed| listed == origin);
        match origin.to_str() {
            Ok(named) if is_listed(named) => CorsGrant::Allowed(origin.clone()),
            Ok(named) if named != NULL && is_listed(ANY) => {
                CorsGrant::Allowed(HeaderValue::from_static(ANY))
            }
            _ => CorsGrant::Refused,
        }
    }
}

fn check_origin(origin: &str) -> Result<(), &'static str> {
    let Some((scheme, host)) = origin.split_once("://") else {
        return Err("it has no scheme");
    };
    if scheme.is_empty() || host.is_empty() {
        return Err("it needs a scheme and a host");
    }
    if host.contains(['/', '?', '#', '@']) {
        return Err("it must end with the host, or with the port");
    }
    if !origin.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase()) {
        return Err("it must be in lower case and without spaces");
    }
    if host.contains('*') {
        return Err("origins are compared as a whole; only \"*\" alone stands for any");
    }
    match (scheme, host.rsplit_once(':')) {
        ("https", Some((_, "443"))) | ("http", Some((_, "80"))) => {
            Err("browsers leave out the usual port")
        }
        _ => Ok(()),
    }
}

/// What an answer tells a browser about the page that called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum CorsGrant {
    /// Nothing: no origins are configured.
    #[default]
    Off,
    /// The request names no origin, or one that is not allowed.
    Refused,
    /// Pages of this origin may read the answer; `*` stands for any.
    Allowed(HeaderValue),
}

impl CorsGrant {
    /// Completes the head of an answer. A page may read all headers that the head has before: they
    /// are for its user, and some have names that only the configuration knows.
    pub(crate) fn add_headers(&self, head: &mut ResponseHead) {
        if *self == CorsGrant::Off {
            return;
        }
        if let CorsGrant::Allowed(origin) = self {
            let names: Vec<_> = head.headers.keys().map(HeaderName::as_str).collect();
            let exposed = names.join(", ");
            head.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            head.insert_text(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
        head.insert(VARY, VARIES_BY);
    }

    /// Returns the answer to a preflight, the request with which a browser asks whether a page may
    /// call a path that allows these methods. `None` if the request is no preflight, or if the page
    /// may not.
    #[must_use]
    pub(crate) fn preflight_response(
        &self,
        head: &RequestHeader,
        methods: &str,
    ) -> Option<LocalResponse> {
        let is_preflight = head.method == Method::OPTIONS
            && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        if !is_preflight || !matches!(self, CorsGrant::Allowed(_)) {
            return None;
        }
        let more = head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS);
        let more = more.and_then(|names| names.to_str().ok()).filter(|names| is_name_list(names));
        let request_headers = match more {
            Some(more) => format!("{REQUEST_HEADERS}, {more}"),
            None => REQUEST_HEADERS.to_owned(),
        };
        let answer = LocalResponse { status: 204, ..LocalResponse::ok("") };
        Some(
            answer
                .with_header("access-control-allow-methods", &methods)
                .with_header("access-control-allow-headers", &request_headers)
                .with_header("access-control-max-age", &MAX_AGE_S),
        )
    }
}

/// Whether a text is a list of names of headers.
fn is_name_list(text: &str) -> bool {
    let is_name = |name: &str| {
        let is_of_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        !name.is_empty() && name.bytes().all(is_of_name)
    };
    text.split(',').all(|name| is_name(name.trim()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn origins(listed: &[&str]) -> CorsOrigins {
        let mut origins = CorsOrigins::default();
        listed.iter().for_each(|origin| origins.add(origin).expect("an origin"));
        origins
    }

    /// The origin that the answer to a request from an origin names; nothing if it names none.
    fn granted(listed: &[&str], origin: &'static str) -> String {
        let headers = HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))]);
        match origins(listed).grant(&headers) {
            CorsGrant::Allowed(value) => value.to_str().expect("a text").to_owned(),
            CorsGrant::Off | CorsGrant::Refused => String::new(),
        }
    }

    #[rstest]
    #[case::listed(&["null", "https://a.example"], "https://a.example", "https://a.example")]
    #[case::other(&["https://a.example"], "https://b.example", "")]
    #[case::longer(&["https://a.example"], "https://a.example.evil.example", "")]
    #[case::below(&["https://a.example"], "https://x.a.example", "")]
    #[case::other_scheme(&["https://a.example"], "http://a.example", "")]
    #[case::other_port(&["https://a.example"], "https://a.example:8443", "")]
    #[case::other_case(&["https://a.example"], "https://A.example", "")]
    #[case::any(&["*"], "https://a.example", "*")]
    #[case::any_and_listed(&["*", "https://a.example"], "https://a.example", "https://a.example")]
    #[case::null_is_not_any(&["*"], "null", "")]
    #[case::null_is_listed(&["null"], "null", "null")]
    #[case::off(&[], "https://a.example", "")]
    fn an_origin_is_compared_as_a_whole(
        #[case] listed: &[&str],
        #[case] origin: &'static str,
        #[case] expected: &str,
    ) {
        assert_eq!(granted(listed, origin), expected);
    }

    #[test]
    fn two_origins_are_none() {
        let two = ["https://a.example", "https://b.example"].map(HeaderValue::from_static);
        let mut headers = HeaderMap::new();
        for origin in two {
            headers.append(ORIGIN, origin);
        }
        assert_eq!(origins(&["*"]).grant(&headers), CorsGrant::Refused);
    }

    #[rstest]
    #[case::path("https://a.example/", "must end with the host")]
    #[case::no_scheme("a.example", "no scheme")]
    #[case::no_host("https://", "a host")]
    #[case::upper_case("https://A.example", "lower case")]
    #[case::pattern("https://*.example", "as a whole")]
    #[case::usual_port("https://a.example:443", "usual port")]
    fn what_no_browser_sends_is_a_fault(#[case] origin: &str, #[case] why: &str) {
        let told = CorsOrigins::default().add(origin).expect_err("a fault");
        assert!(told.contains(why) && told.contains(origin), "{told}");
    }

    #[rstest]
    #[case("x-stainless-os,x-stainless-lang", true)]
    #[case("x-a, x-b", true)]
    #[case("", false)]
    #[case("x-a,,x-b", false)]
    #[case("x a", false)]
    #[case("*", false)]
    fn only_names_of_headers_are_said_again(#[case] names: &str, #[case] expected: bool) {
        assert_eq!(is_name_list(names), expected);
    }
}
