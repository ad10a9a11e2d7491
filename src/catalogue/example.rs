//! Examples in the rules: the body that a request becomes, the field for which it is refused, or
//! whether an answer is a block. They run when the rules are parsed.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value as Json;

use super::model::Model;
use super::offer::Catalogue;
use super::vendor::Vendor;
use crate::dialect::Endpoint;
use crate::dialect::json::{JsonDocument, JsonPatch};
use crate::toml_reader::{ConfigError, SourceLocation, SpannedValue, TableReader};

/// An example, with its location in the rules.
pub(super) struct RuleExample {
    location: SourceLocation,
    case: ExampleCase,
}

enum ExampleCase {
    Body(ExpectedBody),
    Answer(ExpectedFailover),
}

/// An example of how the rules rewrite or refuse the body of a call.
struct ExpectedBody {
    model: String,
    endpoint: Endpoint,
    given: String,
    /// The body expected, or the field expected to be refused.
    expect: Result<String, String>,
}

/// An example of whether an answer of the vendor is a block: the gateway then tries the next route.
struct ExpectedFailover {
    vendor: Arc<Vendor>,
    status: u16,
    body: String,
    is_blocked: bool,
}

/// Parses an `[[example]]`.
pub(super) fn parse(
    node: SpannedValue,
    vendor: &Arc<Vendor>,
    faults: &mut Vec<ConfigError>,
) -> Option<RuleExample> {
    let mut row = TableReader::open(node, faults);
    let location = row.location.clone();
    let (case, needs) = if row.has("answer") {
        let needs = "an example of an answer needs status, answer, and whether it is blocked";
        (parse_answer(&mut row, vendor, faults).map(ExampleCase::Answer), needs)
    } else {
        let needs =
            "an example needs model, given, one of expect and refused, and may name an endpoint";
        (parse_body(&mut row, faults).map(ExampleCase::Body), needs)
    };
    row.finish(faults);
    if case.is_none() {
        faults.push(location.error(needs));
    }
    Some(RuleExample { location, case: case? })
}

fn parse_answer(
    row: &mut TableReader,
    vendor: &Arc<Vendor>,
    faults: &mut Vec<ConfigError>,
) -> Option<ExpectedFailover> {
    let status = row.integer("status", faults).and_then(|n| u16::try_from(n).ok());
    let body = row.text("answer", faults);
    let is_blocked = row.bool("blocked", faults);
    let vendor = vendor.clone();
    Some(ExpectedFailover { vendor, status: status?, body: body?, is_blocked: is_blocked? })
}

fn parse_body(row: &mut TableReader, faults: &mut Vec<ConfigError>) -> Option<ExpectedBody> {
    let model = row.text("model", faults);
    let given = row.text("given", faults);
    let endpoint = row.text("endpoint", faults).unwrap_or_else(|| Endpoint::Chat.name().to_owned());
    let (expect, refused) = (row.text("expect", faults), row.text("refused", faults));
    let endpoint = Endpoint::ALL.into_iter().find(|e| e.name() == endpoint);
    let expect = match (expect, refused) {
        (Some(body), None) => Some(Ok(body)),
        (None, Some(field)) => Some(Err(field)),
        _ => None,
    };
    Some(ExpectedBody { model: model?, endpoint: endpoint?, given: given?, expect: expect? })
}

impl RuleExample {
    /// Runs the example. An outcome other than the expected one is a fault.
    pub(super) fn run(&self, catalogue: &Catalogue, faults: &mut Vec<ConfigError>) {
        let outcome = match &self.case {
            ExampleCase::Body(body) => body.check(catalogue),
            ExampleCase::Answer(answer) => answer.check(),
        };
        if let Err(why) = outcome {
            faults.push(self.location.error(format!("the example fails: {why}")));
        }
    }
}

impl ExpectedFailover {
    fn check(&self) -> Result<(), String> {
        let rules = &self.vendor.failover;
        let is_blocked = rules.matches_status(self.status)
            || rules.matches_body(self.status, self.body.as_bytes());
        match (is_blocked, self.is_blocked) {
            (true, false) => Err("the answer is a block".to_owned()),
            (false, true) => Err("the answer is no block".to_owned()),
            _ => Ok(()),
        }
    }
}

impl ExpectedBody {
    fn check(&self, catalogue: &Catalogue) -> Result<(), String> {
        let model = catalogue.find(&self.model).ok_or("no such model")?;
        let document =
            JsonDocument::parse(Bytes::from(self.given.clone())).map_err(|e| e.to_string())?;
        let refusal = model
            .vendor
            .field_policy(self.endpoint)
            .and_then(|policy| policy.find_refusal(&document, &model.price));
        let refused = refusal.as_ref().map(|refused| refused.rule.field.as_str());
        // A tool with a fee is refused as well, if the call does not bound its uses.
        let unbounded = || model.vendor.find_unbounded_tool(self.endpoint, &document);
        match (refused.or_else(unbounded), &self.expect) {
            (Some(refused), Err(field)) if refused == *field => Ok(()),
            (Some(refused), _) => Err(format!("'{refused}' is refused")),
            (None, Err(field)) => Err(format!("'{field}' is not refused")),
            (None, Ok(expected)) => {
                let rewritten = rewrite_body(model, self.endpoint, &document);
                let read = |text: &str| serde_json::from_str(text).map_err(|e| e.to_string());
                let (rewritten_json, expected): (Json, Json) = (read(&rewritten)?, read(expected)?);
                if rewritten_json == expected {
                    Ok(())
                } else {
                    Err(format!("the body becomes {rewritten}"))
                }
            }
        }
    }
}

fn rewrite_body(model: &Model, endpoint: Endpoint, document: &JsonDocument) -> String {
    let mut patch = JsonPatch::new(document);
    model.rewrite(endpoint, &mut patch);
    String::from_utf8_lossy(&patch.finish().concat()).into_owned()
}
