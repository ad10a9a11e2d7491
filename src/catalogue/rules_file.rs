//! A vendor's rules file: its API format and wire settings, its models with prices, its refused
//! fields, its rewrites, and the examples that test them.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use super::endpoint_names::parse_endpoints;
use super::example::{self, RuleExample};
use super::failover::FailoverRule;
use super::fee_table::parse_fee;
use super::field_policy::{FieldPolicy, FieldRefusal, OptionalPrice};
use super::kind::ModelKind;
use super::model::Model;
use super::output_limit::OutputLimitRule;
use super::prices;
use super::rewrite::{FallbackValue, NumberClamp, RewriteRule};
use super::vendor::{ImageEditFormat, TextApi, Vendor};
use crate::dialect::Endpoint;
use crate::dialect::json::patch::json_string;
use crate::dialect::tokens::Tokenizer;
use crate::money::price::Price;
use crate::toml_reader::{
    self, ConfigError, SourceLocation, SpannedValue, TableReader, TomlValue, closest_word,
};

/// The content of a rules file.
pub(super) struct RulesFile {
    /// The token of the vendor.
    pub(super) vendor: String,
    pub(super) models: Vec<ModelEntry>,
    pub(super) examples: Vec<RuleExample>,
}

/// A model in a rules file.
pub(super) struct ModelEntry {
    pub(super) model: Model,
    pub(super) location: SourceLocation,
    /// Whether it is the default model: the model for calls of its kind that name none.
    pub(super) is_default: bool,
}

/// The endpoints of a refusal that names no endpoint.
const TEXT_ENDPOINTS: [Endpoint; 3] = [Endpoint::Chat, Endpoint::Responses, Endpoint::Messages];

/// Parses a rules file, and adds every fault to `faults`.
pub(super) fn parse(file: &str, text: &str, faults: &mut Vec<ConfigError>) -> RulesFile {
    let (root, syntax) = toml_reader::parse(file, text);
    faults.extend(syntax);
    let mut table = TableReader::open(root, faults);
    let mut vendor = Vendor {
        name: table.text("vendor", faults).unwrap_or_default(),
        text_api: parse_text_api(&mut table, faults),
        supports_responses: table.has(ModelKind::Responses.name()),
        limit_covers_reasoning: table.bool("limits_reasoning", faults).unwrap_or(true),
        image_edits: parse_image_edits(&mut table, faults),
        output_limits: OutputLimitRule::parse_table(&mut table, faults),
        ..Vendor::default()
    };
    let stem = file.rsplit('/').next().unwrap_or(file).trim_end_matches(".toml");
    if vendor.name != stem {
        faults.push(
            table.location.error(format!("'vendor' must be \"{stem}\", as the file is named")),
        );
    }
    parse_wire_settings(&mut vendor, &mut table, faults);
    let sections: Vec<(ModelKind, Vec<(String, SpannedValue)>)> =
        ModelKind::ALL.iter().map(|kind| (*kind, table.members(kind.name(), faults))).collect();
    let known: Vec<String> =
        sections.iter().flat_map(|(_, rows)| rows.iter().map(|(id, _)| id.clone())).collect();
    for node in table.list("refuse", faults) {
        parse_refusal(&mut vendor, node, faults);
    }
    for node in table.list("fee", faults) {
        parse_fee(&mut vendor, node, faults);
    }
    for node in table.list("rewrite", faults) {
        let rewrite = parse_rewrite(node, &known, faults);
        vendor.rewrites.push(rewrite);
    }
    let examples = table.list("example", faults);
    table.finish(faults);
    let token = vendor.name.clone();
    let vendor = Arc::new(vendor);
    let examples =
        examples.into_iter().filter_map(|node| example::parse(node, &vendor, faults)).collect();
    let rows =
        sections.into_iter().flat_map(|(kind, rows)| rows.into_iter().map(move |r| (kind, r)));
    let models =
        rows.map(|(kind, (id, node))| parse_model(kind, id, node, &vendor, faults)).collect();
    RulesFile { vendor: token, models, examples }
}

fn parse_text_api(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> TextApi {
    let location = table.location.clone();
    match table.text("dialect", faults).as_deref() {
        Some("chat") => TextApi::Chat,
        Some("messages") => TextApi::Messages,
        _ => {
            faults.push(location.error("'dialect' must be \"chat\" or \"messages\""));
            TextApi::Chat
        }
    }
}

fn parse_image_edits(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> ImageEditFormat {
    let location = table.location.clone();
    match table.text("image_edits", faults).as_deref() {
        None | Some("form") => ImageEditFormat::Form,
        Some("json") => ImageEditFormat::Json,
        Some(_) => {
            faults.push(location.error("'image_edits' must be \"form\" or \"json\""));
            ImageEditFormat::Form
        }
    }
}

fn parse_wire_settings(
    vendor: &mut Vendor,
    table: &mut TableReader,
    faults: &mut Vec<ConfigError>,
) {
    if let Some(mut auth) = table.table("auth", faults) {
        vendor.auth_header = auth.text("header", faults).unwrap_or_default();
        vendor.auth_scheme = auth.text("scheme", faults);
        auth.finish(faults);
    }
    if vendor.auth_header.is_empty() {
        faults.push(table.location.error("'auth' must name the header that carries the key"));
    }
    vendor.failover = FailoverRule::parse(table, faults);
    if let Some(mut version) = table.table("version", faults) {
        let header = version.text("header", faults).unwrap_or_default();
        let ours = version.text("default", faults).unwrap_or_default();
        if header.is_empty() || ours.is_empty() {
            faults.push(version.location.error("'version' needs a header and a default"));
        }
        vendor.version = Some((header, ours));
        version.finish(faults);
    }
    vendor.forward_headers = table.texts("forward_headers", faults).unwrap_or_default();
    let Some(mut estimate) = table.table("estimate", faults) else {
        faults.push(table.location.error("'[estimate]' is required"));
        return;
    };
    let mut positive = |key| {
        let read = estimate.integer(key, faults).filter(|n| *n > 0);
        if read.is_none() {
            faults.push(estimate.location.error(format!("'{key}' must be a whole number from 1")));
        }
        read.unwrap_or_default()
    };
    vendor.output_tokens_default = positive("output_tokens");
    vendor.image_tokens_max = positive("image_tokens");
    vendor.document_tokens_max = positive("document_tokens");
    // Optional, because not every vendor hosts tools itself.
    vendor.tool_tokens_max = estimate.integer("tool_tokens", faults).unwrap_or(0);
    vendor.tokenizer = parse_tokenizer(&mut estimate, faults).unwrap_or_default();
    estimate.finish(faults);
}

/// Reads the name of a tokenizer; `None` if there is none.
fn parse_tokenizer(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> Option<Tokenizer> {
    let name = table.text("tokenizer", faults)?;
    let known = Tokenizer::from_name(&name);
    if known.is_none() {
        let names = Tokenizer::ALL.map(Tokenizer::name);
        let near = closest_word(&name, names).unwrap_or("general");
        let what = format!("unknown tokenizer '{name}'; closest is '{near}'");
        faults.push(table.location.error(what));
    }
    known
}

fn parse_model(
    kind: ModelKind,
    id: String,
    node: SpannedValue,
    vendor: &Arc<Vendor>,
    faults: &mut Vec<ConfigError>,
) -> ModelEntry {
    let location = node.location.clone();
    let mut row = TableReader::open(node, faults);
    let price = prices::parse_price(kind, &mut row, faults);
    let cost = parse_cost(kind, &mut row, &price, faults);
    let text = matches!(kind, ModelKind::Chat | ModelKind::Responses);
    let context = if text { prices::parse_token_count(&mut row, "context", faults) } else { None };
    let output_max =
        if text { prices::parse_token_count(&mut row, "output_max", faults) } else { None };
    let effort = text && row.bool("effort", faults).unwrap_or(false);
    let reasoning = text && row.bool("reasoning", faults).unwrap_or(effort);
    let tokenizer = if text { parse_tokenizer(&mut row, faults) } else { None };
    let messages = kind == ModelKind::Chat && vendor.text_api == TextApi::Messages;
    let json_schema = messages && row.bool("json_schema", faults).unwrap_or(false);
    let thinking = messages && row.bool("thinking", faults).unwrap_or(false);
    let has_default = matches!(kind, ModelKind::Moderation | ModelKind::Image);
    let is_default = has_default && row.bool("default", faults).unwrap_or(false);
    row.finish(faults);
    let vendor = vendor.clone();
    let model = Model {
        id,
        kind,
        price,
        cost,
        context_length: context,
        output_max,
        supports_effort: effort,
        hidden_reasoning: reasoning,
        supports_json_schema: json_schema,
        thinking,
        tokenizer: tokenizer.unwrap_or(vendor.tokenizer),
        vendor,
    };
    ModelEntry { model, location, is_default }
}

/// Reads what the vendor charges for a model, in the form of a price; `None` if the row does not
/// say. What is free has no cost.
fn parse_cost(
    kind: ModelKind,
    row: &mut TableReader,
    price: &Price,
    faults: &mut Vec<ConfigError>,
) -> Option<Price> {
    if kind == ModelKind::Moderation {
        return None;
    }
    let mut table = row.table("cost", faults)?;
    let location = table.location.clone();
    let cost = prices::parse_price(kind, &mut table, faults);
    table.finish(faults);
    // The units of such calls are the bill, and those of all others are none.
    if cost.is_vendor_billed() != price.is_vendor_billed() {
        faults.push(location.error(
            "the cost must be the vendor's bill, which is input = 0 and output = 0, if the price \
             is, and only then",
        ));
    }
    Some(cost)
}

fn parse_refusal(vendor: &mut Vendor, node: SpannedValue, faults: &mut Vec<ConfigError>) {
    let mut row = TableReader::open(node, faults);
    let named = row.texts("endpoints", faults);
    let field = row.text("field", faults).unwrap_or_default();
    let because = row.text("because", faults).unwrap_or_default();
    let unless = row.list("unless", faults).iter().filter_map(|n| to_json(n, faults)).collect();
    let unless_price = parse_unless_price(&mut row, faults);
    let details = row.take_value("details").and_then(|n| to_json(&n, faults));
    let location = row.location.clone();
    row.finish(faults);
    if because.is_empty() {
        faults.push(location.error("'because' must tell the client why"));
    }
    let refusal = FieldRefusal { field, reason: because, unless, unless_price, details };
    for endpoint in parse_endpoints(named.as_deref(), &TEXT_ENDPOINTS, &location, faults) {
        if !vendor.field_policies.iter().any(|(e, _)| *e == endpoint) {
            vendor.field_policies.push((endpoint, FieldPolicy::default()));
        }
        let policies = vendor.field_policies.iter_mut().filter(|(e, _)| *e == endpoint);
        for (_, policy) in policies {
            if let Err(why) = policy.add(refusal.clone()) {
                faults.push(location.error(why));
            }
        }
    }
}

fn parse_unless_price(
    row: &mut TableReader,
    faults: &mut Vec<ConfigError>,
) -> Option<OptionalPrice> {
    let name = row.text("unless_price", faults)?;
    let known = OptionalPrice::from_name(&name);
    if known.is_none() {
        faults.push(row.location.error("'unless_price' must be \"cache_write_1h\""));
    }
    known
}

/// Returns the endpoints with these names; `otherwise` if no names are given.
fn parse_rewrite(
    node: SpannedValue,
    known: &[String],
    faults: &mut Vec<ConfigError>,
) -> RewriteRule {
    let mut row = TableReader::open(node, faults);
    let named = row.texts("endpoints", faults);
    let rewrite = RewriteRule {
        models: row.texts("models", faults).unwrap_or_default(),
        endpoints: parse_endpoints(named.as_deref(), &[Endpoint::Chat], &row.location, faults),
        drop: row.texts("drop", faults).unwrap_or_default(),
        either: parse_either(&mut row, faults),
        rename: parse_pairs(&mut row, "rename", faults, |n, _| match &n.value {
            TomlValue::Text(t) => Some(t.clone()),
            _ => None,
        }),
        default: parse_pairs(&mut row, "default", faults, to_json),
        set: parse_pairs(&mut row, "set", faults, to_json),
        clamp: row
            .members("clamp", faults)
            .into_iter()
            .map(|(field, node)| parse_clamp(field, node, faults))
            .collect(),
        fallbacks: row
            .members("lower", faults)
            .into_iter()
            .map(|(field, node)| parse_fallback(field, node, faults))
            .collect(),
    };
    for model in rewrite.models.iter().filter(|m| !known.contains(m)) {
        let near = closest_word(model, known.iter().map(String::as_str));
        let hint = near.map_or_else(String::new, |n| format!("; closest is '{n}'"));
        faults.push(row.location.error(format!("unknown model '{model}'{hint}")));
    }
    let (models, endpoints) = (rewrite.models.clone(), rewrite.endpoints.clone());
    if rewrite == (RewriteRule { models, endpoints, ..RewriteRule::default() }) {
        faults.push(
            row.location
                .error("a rewrite needs a verb: drop, either, rename, default, set, clamp, lower"),
        );
    }
    row.finish(faults);
    rewrite
}

/// Reads lists of fields: of each list, only the first field that a body has stays in it.
fn parse_either(row: &mut TableReader, faults: &mut Vec<ConfigError>) -> Vec<Vec<String>> {
    let lists = row.list("either", faults);
    let fields = |node: SpannedValue, faults: &mut Vec<ConfigError>| {
        let TomlValue::List(items) = &node.value else {
            faults.push(node.location.error("'either' lists lists of fields"));
            return Vec::new();
        };
        let texts = items.iter().filter_map(|item| match &item.value {
            TomlValue::Text(text) => Some(text.clone()),
            _ => None,
        });
        texts.collect()
    };
    lists.into_iter().map(|node| fields(node, faults)).collect()
}

fn parse_pairs(
    row: &mut TableReader,
    key: &'static str,
    faults: &mut Vec<ConfigError>,
    read: fn(&SpannedValue, &mut Vec<ConfigError>) -> Option<String>,
) -> Vec<(String, String)> {
    let members = row.members(key, faults);
    members.into_iter().filter_map(|(name, node)| Some((name, read(&node, faults)?))).collect()
}

fn parse_clamp(field: String, node: SpannedValue, faults: &mut Vec<ConfigError>) -> NumberClamp {
    let mut row = TableReader::open(node, faults);
    let min = row.number("min", faults).map(|(n, _)| n);
    let max = row.number("max", faults).map(|(n, _)| n);
    row.finish(faults);
    NumberClamp { field, min, max }
}

fn parse_fallback(
    field: String,
    node: SpannedValue,
    faults: &mut Vec<ConfigError>,
) -> FallbackValue {
    let mut row = TableReader::open(node, faults);
    let location = row.location.clone();
    let to = row.take_value("to").and_then(|n| to_json(&n, faults));
    if to.is_none() {
        faults.push(location.error("'to' must be the value to lower to"));
    }
    let unless = row.list("unless", faults).iter().filter_map(|n| to_json(n, faults)).collect();
    row.finish(faults);
    FallbackValue { field, to: to.unwrap_or_default(), unless }
}

/// Returns a value of the rules as JSON text. A number that JSON cannot express, such as `inf`, is
/// a fault.
fn to_json(node: &SpannedValue, faults: &mut Vec<ConfigError>) -> Option<String> {
    match &node.value {
        TomlValue::Text(text) => Some(json_string(text)),
        TomlValue::Bool(b) => Some(b.to_string()),
        TomlValue::Number(n)
            if crate::dialect::json::scan::validate_value(n.as_bytes()).is_ok() =>
        {
            Some(n.clone())
        }
        TomlValue::Number(n) => {
            faults.push(node.location.error(format!("{n} is no number in JSON")));
            None
        }
        TomlValue::List(items) => {
            let read: Vec<String> = items.iter().filter_map(|i| to_json(i, faults)).collect();
            Some(format!("[{}]", read.join(",")))
        }
        TomlValue::Table(members) => {
            let read = members
                .iter()
                .filter_map(|(k, n)| to_json(n, faults).map(|v| format!("{}:{v}", json_string(k))));
            Some(format!("{{{}}}", read.collect::<Vec<_>>().join(",")))
        }
    }
}
