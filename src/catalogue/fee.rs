//! Fees for tools that a vendor runs itself: which field of a call asks for such a tool, what
//! bounds its uses, where the vendor reports them, and what each of them costs.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::field_policy::ValuePattern;
use super::prices;
use super::vendor::TextApi;
use crate::dialect::json::{JsonDocument, JsonValue};
use crate::dialect::meter::tool_uses::HostedTool;
use crate::dialect::{CallError, Endpoint};
use crate::money::factor::PriceFactor;
use crate::money::fee::ChargedFee;
use crate::money::{Money, MoneyError};
use crate::toml_reader::{ConfigError, SourceLocation, TableReader};

/// A call may allow at most this many uses of a tool.
pub(crate) const USES_MAX: u64 = 1_000;

/// The characters of an invalid bound that an error shows.
const SHOWN_CHARS_MAX: usize = 40;

/// The text before the path of a bound that is not beside the field, but counted from the body on.
const ROOT_PREFIX: &str = "$.";

/// A fee for the uses of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FeeRule {
    /// The name of the tool in journal lines.
    pub(crate) name: String,
    /// The path of the field that asks for the tool, such as `tools[].type`.
    pub(crate) field: String,
    /// The values of the field that are this tool.
    pub(crate) value: ValuePattern,
    /// The endpoints for whose calls it is.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The members on the way to the number of uses in the vendor's reply.
    report_path: Arc<[String]>,
    /// The list price of a use.
    pub(super) price: Money,
    /// What the vendor charges for a use; `None` if that is not known.
    pub(super) cost: Option<Money>,
    bound: UseBound,
    /// The most input tokens that the vendor adds for a use.
    input_tokens: u64,
    /// Whether the vendor reads the whole input again after each use.
    rereads: bool,
}

/// Where a call says how often a tool may be used at most.
#[derive(Debug, Clone, PartialEq, Eq)]
enum UseBound {
    /// In a member of the object that has the field. Each such object has its own.
    Beside(Vec<String>),
    /// In a member of the body, for all tools together.
    Body(Vec<String>),
}

impl FeeRule {
    /// Parses a `[[fee]]` of a vendor with this API format, and adds what is wrong to `faults`.
    /// `None` if the rule cannot be used.
    pub(super) fn parse(
        row: &mut TableReader,
        endpoints: Vec<Endpoint>,
        text_api: TextApi,
        faults: &mut Vec<ConfigError>,
    ) -> Option<FeeRule> {
        let location = row.location.clone();
        let before = faults.len();
        let field = row.text("field", faults).unwrap_or_default();
        if split_field(&field).is_none() {
            faults
                .push(location.error("'field' must be the path of a member such as tools[].type"));
        }
        let value = parse_value(row, faults);
        let name = row.text("name", faults).unwrap_or_else(|| default_name(&field, &value));
        if name.is_empty() {
            faults.push(location.error("'name' must not be empty"));
        }
        let report = row.text("per", faults).unwrap_or_default();
        let report_path = split_path(&report);
        if report_path.is_none() {
            let what = "'per' must be the path of a count in the vendor's reply, such as \
                        usage.server_tool_use.web_search_requests";
            faults.push(location.error(what));
        }
        let read_before = faults.len();
        let price = prices::required_price(row, "usd", faults, Money::parse_usd);
        if price == Money::ZERO && faults.len() == read_before {
            faults.push(location.error("'usd' must be above 0"));
        }
        let cost = prices::optional_price(row, "cost", faults, Money::parse_usd);
        let bound = parse_bound(&row.text("most", faults).unwrap_or_default());
        if bound.is_none() {
            let what = "'most' must be the member that bounds the uses: one beside the field, such \
                        as max_uses, or one of the body, such as $.max_tool_calls";
            faults.push(location.error(what));
        }
        let input_tokens = prices::parse_token_count(row, "input_tokens", faults).unwrap_or(0);
        let rereads = row.bool("rereads", faults).unwrap_or(true);
        check_endpoints(&endpoints, text_api, &location, faults);
        let (report_path, bound) = (report_path?.into(), bound?);
        let rule = FeeRule {
            name,
            field,
            value,
            endpoints,
            report_path,
            price,
            cost,
            bound,
            input_tokens,
            rereads,
        };
        (faults.len() == before).then_some(rule)
    }

    /// Whether the vendor's reply has one count for the tools of both rules.
    pub(crate) fn counts_with(&self, other: &FeeRule) -> bool {
        self.report_path == other.report_path
    }

    /// Returns the fee as the listing shows it for a model that is sold on these endpoints.
    /// `factor` is that of the account's book.
    pub(super) fn listing(&self, endpoints: &[Endpoint], factor: Option<PriceFactor>) -> Json {
        let own = self.endpoints.iter().filter(|endpoint| endpoints.contains(endpoint));
        let endpoints: Vec<&str> = own.map(|endpoint| endpoint.path()).collect();
        let most = match &self.bound {
            UseBound::Beside(path) => path.join("."),
            UseBound::Body(path) => format!("{ROOT_PREFIX}{}", path.join(".")),
        };
        json!({
            "name": self.name,
            "endpoints": endpoints,
            "field": self.field,
            "value": self.value.to_text(),
            "most": most,
            "per": self.report_path.join("."),
            "usd": self.usd_string(factor),
        })
    }

    /// Returns the price of a use in USD, as an exact decimal.
    fn usd_string(&self, factor: Option<PriceFactor>) -> String {
        factor.map_or_else(|| self.price.to_string(), |factor| factor.amount_usd_string(self.price))
    }

    /// Finds the tool in the body of a call. `earlier` are the rules that come before this one:
    /// what matches one of them is not of this rule.
    fn find(
        &self,
        document: &JsonDocument,
        earlier: &[&FeeRule],
        factor: Option<PriceFactor>,
    ) -> Result<Option<CallFee>, CallError> {
        let Some((holders, member)) = split_field(&self.field) else { return Ok(None) };
        let body = JsonValue::from_validated(document.body().trim_ascii());
        let mut uses_max: Option<u64> = None;
        let mut first_place = String::new();
        visit(body, &holders, String::new(), &mut |holder, place| {
            let Some(value) = holder.get(member).filter(|value| self.value.matches(*value)) else {
                return Ok(());
            };
            if earlier.iter().any(|rule| rule.field == self.field && rule.value.matches(value)) {
                return Ok(());
            }
            let bound = self.read_bound(body, (holder, &place), factor)?;
            uses_max = Some(match (uses_max, &self.bound) {
                (Some(sum), UseBound::Beside(_)) => sum.saturating_add(bound),
                (_, UseBound::Body(_)) | (None, UseBound::Beside(_)) => bound,
            });
            if first_place.is_empty() {
                first_place = join(&place, member);
            }
            Ok(())
        })?;
        Ok(uses_max.map(|uses_max| CallFee {
            name: self.name.clone(),
            place: first_place,
            report_path: self.report_path.clone(),
            price: self.price,
            cost: self.cost,
            uses_max,
            input_tokens: self.input_tokens.saturating_mul(uses_max),
            rereads: self.rereads,
            is_bound_shared: matches!(self.bound, UseBound::Body(_)),
        }))
    }

    /// Reads how often a call allows the tool that stands in the object `holder`, at a place of the
    /// body.
    fn read_bound(
        &self,
        body: JsonValue<'_>,
        holder: (JsonValue<'_>, &str),
        factor: Option<PriceFactor>,
    ) -> Result<u64, CallError> {
        let (holder, place) = holder;
        let (from, path, place) = match &self.bound {
            UseBound::Beside(path) => (holder, path, place),
            UseBound::Body(path) => (body, path, ""),
        };
        let found = path.iter().try_fold(from, |value, name| value.get(name));
        let field = join(place, &path.join("."));
        let expected = format!(
            "a whole number from 1 to {USES_MAX}, the most uses of {} that you pay for, \
             {} USD each",
            self.name,
            self.usd_string(factor)
        );
        let Some(value) = found.filter(|value| !value.is_null()) else {
            return Err(CallError::missing(&field, &expected));
        };
        value.integer().filter(|uses| (1..=USES_MAX).contains(uses)).ok_or_else(|| {
            let raw = String::from_utf8_lossy(value.raw());
            let shown: String = raw.chars().take(SHOWN_CHARS_MAX).collect();
            let found = value.kind().description();
            CallError::invalid(&field, &format!("{expected}, not {found} ({shown})"))
        })
    }
}

fn parse_value(row: &mut TableReader, faults: &mut Vec<ConfigError>) -> ValuePattern {
    let location = row.location.clone();
    let Some(text) = row.text("value", faults) else { return ValuePattern::Any };
    ValuePattern::parse(&text).unwrap_or_else(|| {
        faults.push(location.error("'value' must be a text, and may have one * at its end"));
        ValuePattern::Any
    })
}

/// Returns the name of a tool whose rule has none: its type without the version, or the field.
fn default_name(field: &str, value: &ValuePattern) -> String {
    let name = match value {
        ValuePattern::Any => field.rsplit('.').next().unwrap_or_default(),
        ValuePattern::Text(text) | ValuePattern::Prefix(text) => text,
    };
    let name = name.trim_end_matches(['_', '-']);
    let is_date = |end: &str| end.len() == 8 && end.bytes().all(|byte| byte.is_ascii_digit());
    let version = name.rsplit_once('_').filter(|(_, end)| is_date(end));
    version.map_or(name, |(name, _)| name).to_owned()
}

fn parse_bound(text: &str) -> Option<UseBound> {
    match text.strip_prefix(ROOT_PREFIX) {
        Some(path) => split_path(path).map(UseBound::Body),
        None => split_path(text).map(UseBound::Beside),
    }
}

/// A call that is translated cannot have a tool of the vendor's.
fn check_endpoints(
    endpoints: &[Endpoint],
    text_api: TextApi,
    location: &SourceLocation,
    faults: &mut Vec<ConfigError>,
) {
    let (own, names): (&[Endpoint], _) = match text_api {
        TextApi::Messages => (&[Endpoint::Messages], "messages"),
        TextApi::Chat => (&[Endpoint::Chat, Endpoint::Responses], "chat and responses"),
    };
    for endpoint in endpoints.iter().filter(|endpoint| !own.contains(endpoint)) {
        let name = endpoint.name();
        let what = format!("'{name}' can have no fee: the tools of this vendor run for {names}");
        faults.push(location.error(what));
    }
}

/// Splits a path of names with dots between them; `None` if a name is empty or has brackets.
fn split_path(path: &str) -> Option<Vec<String>> {
    let is_name = |name: &str| !name.is_empty() && !name.contains(['[', ']', '$', '*']);
    path.split('.').map(|name| is_name(name).then(|| name.to_owned())).collect()
}

/// Splits the path of a field into the lists and objects that it stands in, each with whether it is
/// a list, and its name; `None` if it is no such path.
fn split_field(field: &str) -> Option<(Vec<(&str, bool)>, &str)> {
    let (holders, member) = match field.rsplit_once('.') {
        Some((holders, member)) => (Some(holders), member),
        None => (None, field),
    };
    let is_name = |name: &str| !name.is_empty() && !name.contains(['[', ']']);
    let step = |part| match str::strip_suffix(part, "[]") {
        Some(name) => is_name(name).then_some((name, true)),
        None => is_name(part).then_some((part, false)),
    };
    let holders = holders.into_iter().flat_map(|path| path.split('.'));
    Some((holders.map(step).collect::<Option<_>>()?, is_name(member).then_some(member)?))
}

/// Shows each object at the end of a path to `see`, with its place in the body.
fn visit<'a>(
    value: JsonValue<'a>,
    path: &[(&str, bool)],
    place: String,
    see: &mut impl FnMut(JsonValue<'a>, String) -> Result<(), CallError>,
) -> Result<(), CallError> {
    let Some(((name, is_list), rest)) = path.split_first() else { return see(value, place) };
    let Some(inner) = value.get(name) else { return Ok(()) };
    let place = join(&place, name);
    if !*is_list {
        return visit(inner, rest, place, see);
    }
    for (i, element) in inner.elements().enumerate() {
        visit(element, rest, format!("{place}[{i}]"), see)?;
    }
    Ok(())
}

fn join(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}

/// The fee of one tool of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallFee {
    /// The name of the tool in journal lines.
    pub(crate) name: String,
    /// Where the call asks for it first.
    pub(crate) place: String,
    report_path: Arc<[String]>,
    /// The list price of a use.
    price: Money,
    /// What the vendor charges for a use; `None` if that is not known.
    cost: Option<Money>,
    /// The most uses that the call allows.
    pub(crate) uses_max: u64,
    /// The most input tokens that the vendor adds for all uses together.
    input_tokens: u64,
    /// Whether the vendor reads the whole input again after each use.
    rereads: bool,
    /// Whether the bound is one for all tools of the call together.
    is_bound_shared: bool,
}

/// The fees of a call, one for each of its tools that cost one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CallFees(Vec<CallFee>);

impl CallFees {
    /// Finds the tools of a call that cost a fee, by these rules. `factor` is that of the account's
    /// book.
    ///
    /// # Errors
    /// [`CallError`] names the bound of a tool that is missing or invalid, what would be right, and
    /// what a use costs the account.
    pub(super) fn find(
        rules: &[&FeeRule],
        document: &JsonDocument,
        factor: Option<PriceFactor>,
    ) -> Result<CallFees, CallError> {
        let mut fees = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            let earlier = rules.get(..at).unwrap_or_default();
            fees.extend(rule.find(document, earlier, factor)?);
        }
        Ok(CallFees(fees))
    }

    /// Whether the call has no fees.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first fee; `None` if there is none.
    #[must_use]
    pub(crate) fn first(&self) -> Option<&CallFee> {
        self.0.first()
    }

    /// Returns how many more times at most the vendor reads the whole input for all tools together.
    #[must_use]
    pub(crate) fn rereads_max(&self) -> u64 {
        let (mut own, mut shared) = (0_u64, 0);
        for fee in self.0.iter().filter(|fee| fee.rereads) {
            if fee.is_bound_shared {
                shared = fee.uses_max.max(shared);
            } else {
                own = own.saturating_add(fee.uses_max);
            }
        }
        match own.saturating_add(shared) {
            0 => 0,
            // One more: the model may try again after the last use, and is told that it cannot.
            uses => uses.saturating_add(1),
        }
    }

    /// Returns the most input tokens that the vendor adds for all uses together.
    #[must_use]
    pub(crate) fn input_tokens_max(&self) -> u64 {
        self.0.iter().map(|fee| fee.input_tokens).fold(0, u64::saturating_add)
    }

    /// Returns the amount that covers all fees.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if it does not fit.
    pub(crate) fn amount_max(&self) -> Result<Money, MoneyError> {
        self.0
            .iter()
            .try_fold(Money::ZERO, |sum, fee| sum.checked_add(fee.price.checked_mul(fee.uses_max)?))
    }

    /// Returns the tools whose uses are to be counted, in the order of the fees.
    #[must_use]
    pub(crate) fn tools(&self) -> Vec<HostedTool> {
        self.0.iter().map(|fee| HostedTool::new(&fee.name, fee.report_path.clone())).collect()
    }

    /// Returns the fees for these counts of uses, in the order of the tools. Of uses
    /// that are not known, as many are charged as the call allows.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if an amount does not fit.
    pub(crate) fn charge(
        &self,
        counts: impl Iterator<Item = Option<u64>>,
    ) -> Result<Vec<ChargedFee>, MoneyError> {
        let charge = |(fee, count): (&CallFee, Option<u64>)| {
            let uses = count.map_or(fee.uses_max, |count| count.min(fee.uses_max));
            Ok(ChargedFee {
                name: fee.name.clone(),
                uses,
                amount: fee.price.checked_mul(uses)?,
                rejected_uses: count.filter(|count| *count > fee.uses_max),
                assumed: count.is_none(),
            })
        };
        self.0.iter().zip(counts).map(charge).collect()
    }

    /// Returns what the vendor charges for the uses in `charged`, which [`CallFees::charge`] has
    /// made; `None` if nobody told how often a tool was used, if one was used whose cost is not
    /// known, or if no amount holds the sum. The vendor charges for what it reports, also where
    /// that is more than the call allows.
    #[must_use]
    pub(crate) fn cost(&self, charged: &[ChargedFee]) -> Option<Money> {
        self.0.iter().zip(charged).try_fold(Money::ZERO, |sum, (fee, charged)| {
            let uses = charged.rejected_uses.unwrap_or(charged.uses);
            if charged.assumed && fee.cost != Some(Money::ZERO) {
                return None;
            }
            if uses == 0 {
                return Some(sum);
            }
            sum.checked_add(fee.cost?.checked_mul(uses).ok()?).ok()
        })
    }
}

#[cfg(test)]
mod tests;
