//! The properties of a vendor in the rules: its API format and wire settings, its refused fields,
//! its rewrites.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::failover::FailoverRule;
use super::fee::{CallFees, FeeRule};
use super::field_policy::FieldPolicy;
use super::output_limit::OutputLimitRule;
use super::rewrite::RewriteRule;
use crate::dialect::json::JsonDocument;
use crate::dialect::tokens::Tokenizer;
use crate::dialect::{CallError, Endpoint};
use crate::money::factor::PriceFactor;

/// The API format of a vendor's text endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextApi {
    /// Chat completions.
    #[default]
    Chat,
    /// Messages.
    Messages,
}

/// The format in which a vendor takes an image that is to be edited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageEditFormat {
    /// As a file in a form.
    #[default]
    Form,
    /// As a data URI in JSON.
    Json,
}

/// The API format, wire settings and rules of a vendor.
#[derive(Debug, Default)]
pub struct Vendor {
    /// Its token, such as `vendor_b`.
    pub name: String,
    /// The API format of its text endpoint.
    pub text_api: TextApi,
    /// Whether its chat models are sold in the responses format too.
    pub supports_responses: bool,
    /// Whether the limit on a call's output tokens covers hidden reasoning too.
    pub limit_covers_reasoning: bool,
    /// The format in which it takes images to be edited.
    pub image_edits: ImageEditFormat,
    /// The header that carries the key.
    pub auth_header: String,
    /// The word before the key in that header, such as `Bearer`; `None` if there is none.
    pub auth_scheme: Option<String>,
    /// The answers that are a block: the gateway then tries the next route.
    pub failover: FailoverRule,
    /// The client's headers that are forwarded to the vendor, in lower case; a `*` at the end of a
    /// name matches any rest.
    pub forward_headers: Vec<String>,
    /// The header that holds the version of the vendor's API, and the version that the gateway
    /// itself uses. `None` if there is no such header.
    pub version: Option<(String, String)>,
    /// Output tokens assumed if the client sets no limit.
    pub output_tokens_default: u64,
    /// The most input tokens of one image.
    pub image_tokens_max: u64,
    /// The most input tokens of one paged document.
    pub document_tokens_max: u64,
    /// The most input tokens that the vendor adds for each tool that it hosts itself, and once more
    /// if a call has any tools.
    pub tool_tokens_max: u64,
    /// The tokenizer of its models, unless a model names another one.
    pub tokenizer: Tokenizer,
    pub(super) field_policies: Vec<(Endpoint, FieldPolicy)>,
    pub(super) fees: Vec<FeeRule>,
    pub(super) rewrites: Vec<RewriteRule>,
    pub(super) output_limits: Vec<OutputLimitRule>,
}

/// Whether a rule of [`Vendor::forward_headers`] fits a header, whatever the case of its name.
#[must_use]
pub(crate) fn matches_header_rule(rule: &str, name: &str) -> bool {
    rule.strip_suffix('*').map_or_else(
        || rule.eq_ignore_ascii_case(name),
        |start| name.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start)),
    )
}

impl Vendor {
    /// Returns the refused fields of an endpoint; `None` if there are none.
    #[must_use]
    pub fn field_policy(&self, endpoint: Endpoint) -> Option<&FieldPolicy> {
        let endpoint = endpoint.rules_endpoint();
        self.field_policies.iter().find(|(e, _)| *e == endpoint).map(|(_, s)| s)
    }

    /// Returns the fees for the tools that a call on an endpoint has and that the vendor runs. A
    /// call on an endpoint that is free has none. `factor` is what the account's book multiplies
    /// them by.
    ///
    /// # Errors
    /// [`CallError`] if the call does not bound the uses of such a tool, or if the endpoint cannot
    /// have it.
    pub(crate) fn find_fees(
        &self,
        endpoint: Endpoint,
        document: &JsonDocument,
        factor: Option<PriceFactor>,
    ) -> Result<CallFees, CallError> {
        if self.fees.is_empty() || endpoint.is_free() {
            return Ok(CallFees::default());
        }
        let format = endpoint.rules_endpoint();
        let rules = self.fees.iter().filter(|rule| rule.endpoints.contains(&format));
        let fees = CallFees::find(&rules.collect::<Vec<_>>(), document, factor)?;
        match fees.first() {
            // Its reply tells nothing of tools.
            Some(fee) if endpoint != format => {
                Err(CallError::invalid(&fee.place, "left out: no tool of the vendor runs here"))
            }
            _ => Ok(fees),
        }
    }

    /// Returns the field of the first tool with a fee whose uses a call does not bound; `None` if
    /// it bounds all of them.
    pub(super) fn find_unbounded_tool(
        &self,
        endpoint: Endpoint,
        document: &JsonDocument,
    ) -> Option<&str> {
        let format = endpoint.rules_endpoint();
        let mut rules = self.fees.iter().filter(|rule| rule.endpoints.contains(&format));
        let unbounded = rules.find(|rule| CallFees::find(&[rule], document, None).is_err())?;
        Some(&unbounded.field)
    }

    /// Returns the rewrites of a model's bodies on an endpoint, in the order of the rules.
    pub(crate) fn rewrites<'a>(
        &'a self,
        model: &'a str,
        endpoint: Endpoint,
    ) -> impl Iterator<Item = &'a RewriteRule> {
        let endpoint = endpoint.rules_endpoint();
        self.rewrites.iter().filter(move |r| r.applies_to(model, endpoint))
    }
}
