//! What the gateway answers itself, and which path means what.

use http::Method;
use pingora_http::RequestHeader;
use serde_json::json;

use super::refusal::{Refusal, Tongue};
use crate::catalogue::Catalogue;
use crate::dialect::Endpoint;

const MODELS: &str = "/v1/models";

/// The endpoints that are served.
const SERVED: [Endpoint; 2] = [Endpoint::Chat, Endpoint::Messages];

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A call to an endpoint.
    Endpoint(Endpoint),
    /// The model listing.
    Models,
    /// One model.
    Model(String),
}

/// What the client of a path speaks, whether there is such a path or not.
#[must_use]
pub fn tongue(path: &str) -> Tongue {
    let ours = path.strip_prefix("/v1").filter(|rest| rest.starts_with("/v1/")).unwrap_or(path);
    let rest = ours.strip_prefix(Endpoint::Messages.path());
    let messages = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if messages { Tongue::Messages } else { Tongue::Chat }
}

/// Reads the method and the path. Paths are compared byte by byte; nothing is normalised.
///
/// # Errors
/// No such path, or another method.
pub fn target(head: &RequestHeader) -> Result<Target, Refusal> {
    let path = head.uri.path();
    if path == MODELS {
        return only(head, &Method::GET, "GET").map(|()| Target::Models);
    }
    if let Some(id) = path.strip_prefix("/v1/models/").and_then(decoded) {
        return only(head, &Method::GET, "GET").map(|()| Target::Model(id));
    }
    if let Some(endpoint) = SERVED.into_iter().find(|e| e.path() == path) {
        return only(head, &Method::POST, "POST").map(|()| Target::Endpoint(endpoint));
    }
    Err(Refusal::NoPath(path.to_owned()))
}

fn only(head: &RequestHeader, method: &Method, name: &'static str) -> Result<(), Refusal> {
    if head.method == *method { Ok(()) } else { Err(Refusal::WrongMethod(name)) }
}

/// An id out of a path: clients escape the slash in it. `None` if it is no text.
fn decoded(escaped: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok().filter(|id| !id.is_empty())
}

/// The listing of all models, as the body of an answer.
#[must_use]
pub fn models(catalogue: &Catalogue) -> String {
    let data: Vec<_> = catalogue.models().iter().map(|m| m.listing()).collect();
    json!({ "object": "list", "data": data, "has_more": false }).to_string()
}

/// The listing of one model.
///
/// # Errors
/// No such model; the refusal names the closest one.
pub fn model(catalogue: &Catalogue, id: &str) -> Result<String, Refusal> {
    let Some(model) = catalogue.find(id) else {
        let closest = catalogue.closest(id).map(str::to_owned);
        return Err(Refusal::NoModel { asked: id.to_owned(), closest });
    };
    Ok(model.listing().to_string())
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn an_id_may_have_its_slash_escaped_or_not() {
        assert_eq!(decoded("orgA%2FfamA-V3.2").as_deref(), Some("orgA/famA-V3.2"));
        assert_eq!(decoded("orgA/famA-V3.2").as_deref(), Some("orgA/famA-V3.2"));
        assert_eq!(decoded("a%2"), None);
        assert_eq!(decoded("a%zz"), None);
        assert_eq!(decoded("%ff"), None);
        assert_eq!(decoded(""), None);
    }
}
