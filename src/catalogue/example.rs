//! Examples in the rules: what a body becomes, or why it is refused. They run when rules are read.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::Bytes;
use serde_json::Value as Json;

use super::{Catalogue, Model};
use crate::dialect::Endpoint;
use crate::dialect::json::{Document, Draft};
use crate::sheet::{Fault, Node, Place, Table};

/// One example.
pub(super) struct Example {
    place: Place,
    model: String,
    endpoint: Endpoint,
    given: String,
    /// The body expected, or the field expected to be refused.
    expect: Result<String, String>,
}

/// Reads an `[[example]]`.
pub(super) fn parse(node: Node, faults: &mut Vec<Fault>) -> Option<Example> {
    let mut row = Table::open(node, faults);
    let place = row.place.clone();
    let model = row.text("model", faults);
    let given = row.text("given", faults);
    let endpoint = row.text("endpoint", faults).unwrap_or_else(|| Endpoint::Chat.name().to_owned());
    let (expect, refused) = (row.text("expect", faults), row.text("refused", faults));
    row.finish(faults);
    let endpoint = Endpoint::ALL.into_iter().find(|e| e.name() == endpoint);
    let expect = match (expect, refused) {
        (Some(body), None) => Some(Ok(body)),
        (None, Some(field)) => Some(Err(field)),
        _ => None,
    };
    let (Some(model), Some(given), Some(endpoint), Some(expect)) = (model, given, endpoint, expect)
    else {
        let needs =
            "an example needs model, given, one of expect and refused, and may name an endpoint";
        faults.push(place.fault(needs));
        return None;
    };
    Some(Example { place, model, endpoint, given, expect })
}

impl Example {
    /// Runs it; a different outcome is a fault.
    pub(super) fn run(&self, catalogue: &Catalogue, faults: &mut Vec<Fault>) {
        if let Err(why) = self.outcome(catalogue) {
            faults.push(self.place.fault(format!("the example fails: {why}")));
        }
    }

    fn outcome(&self, catalogue: &Catalogue) -> Result<(), String> {
        let model = catalogue.find(&self.model).ok_or("no such model")?;
        let document =
            Document::parse(Bytes::from(self.given.clone())).map_err(|e| e.to_string())?;
        let refused =
            model.vendor.screen(self.endpoint).and_then(|s| s.check(&document, &model.price));
        match (refused, &self.expect) {
            (Some(refusal), Err(field)) if refusal.field == *field => Ok(()),
            (Some(refusal), _) => Err(format!("'{}' is refused", refusal.field)),
            (None, Err(field)) => Err(format!("'{field}' is not refused")),
            (None, Ok(expected)) => {
                let made = rewritten(model, self.endpoint, &document);
                let read = |text: &str| serde_json::from_str(text).map_err(|e| e.to_string());
                let (made_json, expected): (Json, Json) = (read(&made)?, read(expected)?);
                if made_json == expected { Ok(()) } else { Err(format!("the body becomes {made}")) }
            }
        }
    }
}

fn rewritten(model: &Model, endpoint: Endpoint, document: &Document) -> String {
    let mut draft = Draft::new(document);
    model.rewrite(endpoint, &mut draft);
    String::from_utf8_lossy(&draft.finish().concat()).into_owned()
}
