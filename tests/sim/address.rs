//! What the path of a request says: a vendor, faults, and the endpoint.

use super::endpoint::Endpoint;
use super::vendor::Vendor;

/// The endpoint of a vendor, with the faults asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address<'a> {
    pub(super) vendor: Vendor,
    pub(super) endpoint: Endpoint,
    /// The segment as written; empty when there is none.
    pub(super) faults: &'a str,
    /// The id at its end, of those that have one there.
    pub(super) job: &'a str,
}

impl<'a> Address<'a> {
    /// Reads `/{vendor}[/{faults}]/{version}` and an endpoint of that vendor.
    pub(super) fn parse(path: &'a str) -> Option<Address<'a>> {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let (vendor, rest) = path.strip_prefix('/')?.split_once('/')?;
        let vendor = Vendor::named(vendor)?;
        let mut endpoints = Endpoint::of(vendor).iter();
        let (endpoint, (rest, job)) =
            endpoints.find_map(|known| Some((*known, known.split(rest)?)))?;
        let rest = rest.strip_suffix(vendor.version())?;
        let faults = match rest.strip_suffix('/') {
            Some(faults) if !faults.contains('/') => faults,
            None if rest.is_empty() => "",
            _ => return None,
        };
        Some(Address { vendor, endpoint, faults, job })
    }
}

/// The first segment of a path, for the record of requests that lead nowhere.
pub(super) fn first_segment(path: &str) -> &str {
    path.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_stand_between_vendor_and_version() {
        use Endpoint::{Chat, Edits, Embeddings, Generations, Messages, Moderations, Responses};
        for (path, vendor, endpoint, faults) in [
            ("/vendor_c/v1beta/openai/chat/completions", Vendor::C, Chat, ""),
            ("/vendor_e/cut=2;crlf/v1/openai/chat/completions?a=b", Vendor::E, Chat, "cut=2;crlf"),
            ("/vendor_a/refusal/v1/messages?beta=true", Vendor::A, Messages, "refusal"),
            ("/vendor_b/v1/responses", Vendor::B, Responses, ""),
            ("/vendor_b/delay=9/v1/images/generations", Vendor::B, Generations, "delay=9"),
            ("/vendor_b/v1/images/edits", Vendor::B, Edits, ""),
            ("/vendor_d/ticks=7/v1/images/edits", Vendor::D, Edits, "ticks=7"),
            ("/vendor_b/cut=1/v1/audio/speech", Vendor::B, Endpoint::Speech, "cut=1"),
            ("/vendor_c/with-usage/v1beta/openai/embeddings", Vendor::C, Embeddings, "with-usage"),
            ("/vendor_b/v1/moderations", Vendor::B, Moderations, ""),
            ("/vendor_a/v1/messages/count_tokens", Vendor::A, Endpoint::CountTokens, ""),
            ("/vendor_b/v1/responses/input_tokens", Vendor::B, Endpoint::InputTokens, ""),
            ("/vendor_b/cut=1/v1/responses/compact", Vendor::B, Endpoint::Compact, "cut=1"),
        ] {
            let expected = Address { vendor, endpoint, faults, job: "" };
            assert_eq!(Address::parse(path), Some(expected), "{path}");
        }
        for (path, endpoint, faults, job) in [
            ("/vendor_d/v1/videos/generations", Endpoint::Submit, "", ""),
            ("/vendor_d/never/v1/videos/generations", Endpoint::Submit, "never", ""),
            ("/vendor_d/v1/videos/7de-1", Endpoint::Poll, "", "7de-1"),
            ("/vendor_d/poll.cut=0/v1/videos/7de-1?a", Endpoint::Poll, "poll.cut=0", "7de-1"),
            ("/vendor_d/v1/files/7de-1.mp4", Endpoint::File, "", "7de-1"),
            ("/vendor_d/redirect/v1/files/7de-1.mp4", Endpoint::File, "redirect", "7de-1"),
        ] {
            let expected = Address { vendor: Vendor::D, endpoint, faults, job };
            assert_eq!(Address::parse(path), Some(expected), "{path}");
        }
        for wrong in [
            "/vendor_a/v1/chat/completions",
            "/vendor_b/v1/messages/count_tokens",
            "/vendor_a/v1/responses/input_tokens",
            "/vendor_b/v1/messages",
            "/vendor_e/v1/chat/completions",
            "/vendor_b/cut=2/more/v1/chat/completions",
            "/vendor_f/v1/chat/completions",
            "/vendor_b/v1/completions",
            "/vendor_b/v1/responses/resp_1",
            "/vendor_b/v1/images",
            "/vendor_a/v1/responses",
            "/vendor_a/v1/embeddings",
            "/vendor_c/v1beta/openai/images/generations",
            "/vendor_c/v1/embeddings",
            "/vendor_d/v1/embeddings",
            "/vendor_d/v1/moderations",
            "/vendor_e/v1/openai/embeddings",
            "/vendor_b/v1/videos/generations",
            "/vendor_b/v1/videos/7de-1",
            "/vendor_d/v1/videos",
            "/vendor_d/v1/videos/a/b",
            "/vendor_d/v1/files/7de-1",
            "/vendor_d/files/7de-1.mp4",
        ] {
            assert_eq!(Address::parse(wrong), None, "{wrong}");
        }
    }
}
