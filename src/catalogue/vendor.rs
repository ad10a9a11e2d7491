//! How a vendor is spoken to: its API format and wire settings, its refused fields, its rewrites.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::failover::FailoverRule;
use super::field_policy::FieldPolicy;
use super::rewrite::RewriteRule;
use crate::dialect::Endpoint;

/// What a vendor's text endpoint speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextApi {
    /// Chat completions.
    #[default]
    Chat,
    /// Messages.
    Messages,
}

/// How a vendor takes an image that is to be edited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageEditFormat {
    /// As a file in a form.
    #[default]
    Form,
    /// As a data URI in JSON.
    Json,
}

/// How a vendor is spoken to.
#[derive(Debug, Default)]
pub struct Vendor {
    /// Its token, such as `vendor_b`.
    pub name: String,
    /// What its text endpoint speaks.
    pub text_api: TextApi,
    /// Whether its chat models are sold in the responses format too.
    pub supports_responses: bool,
    /// Whether the limit of a call's output is one of its hidden reasoning too.
    pub limit_covers_reasoning: bool,
    /// How it takes images to be edited.
    pub image_edits: ImageEditFormat,
    /// The header that carries the key.
    pub auth_header: String,
    /// What stands before the key, such as `Bearer`.
    pub auth_scheme: Option<String>,
    /// Which answers are a block.
    pub failover: FailoverRule,
    /// Headers of the client's that go to the vendor, lower case; `*` at the end matches any rest.
    pub forward_headers: Vec<String>,
    /// The header that names the version of the vendor's interface, and the version that the
    /// gateway speaks itself.
    pub version: Option<(String, String)>,
    /// Output tokens assumed where the client sets no limit.
    pub output_tokens_default: u64,
    /// Input tokens of an image, at most.
    pub image_tokens_max: u64,
    /// Input tokens of a document of pages, at most.
    pub document_tokens_max: u64,
    /// Input tokens that the vendor adds for a tool of its own, at most, and once for having tools.
    pub tool_tokens_max: u64,
    pub(super) field_policies: Vec<(Endpoint, FieldPolicy)>,
    pub(super) rewrites: Vec<RewriteRule>,
}

impl Vendor {
    /// What is refused on an endpoint.
    #[must_use]
    pub fn field_policy(&self, endpoint: Endpoint) -> Option<&FieldPolicy> {
        self.field_policies.iter().find(|(e, _)| *e == endpoint).map(|(_, s)| s)
    }

    /// The rewrites of a model's bodies on an endpoint, in order.
    pub(crate) fn rewrites<'a>(
        &'a self,
        model: &'a str,
        endpoint: Endpoint,
    ) -> impl Iterator<Item = &'a RewriteRule> {
        self.rewrites.iter().filter(move |r| r.applies_to(model, endpoint))
    }
}
