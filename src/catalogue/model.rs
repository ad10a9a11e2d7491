//! A model on offer.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::book::{AccountPrice, PriceBook};
use super::fee::FeeRule;
use super::kind::ModelKind;
use super::output_limit::OutputLimitRule;
use super::vendor::{TextApi, Vendor};
use crate::dialect::Endpoint;
use crate::dialect::json::JsonPatch;
use crate::dialect::tokens::Tokenizer;
use crate::money::price::{Price, TokenPrice, TokenRates};
use crate::money::{Rate, VideoResolution};

/// A model with its price and its vendor.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a word of the rules that is there or not"
)]
pub struct Model {
    /// The id that clients use.
    pub id: String,
    /// The kind of its output.
    pub kind: ModelKind,
    /// Its list price.
    pub price: Price,
    /// What its vendor charges for it, in the form of a price; `None` if that is not known.
    pub cost: Option<Price>,
    /// The most input tokens that it accepts; `None` if the price list has no such number.
    pub context_length: Option<u64>,
    /// The most output tokens of one choice; `None` if the rules set none.
    pub output_max: Option<u64>,
    /// Whether it takes `reasoning_effort`.
    pub supports_effort: bool,
    /// Whether it may produce hidden reasoning, which is not in the answer.
    pub hidden_reasoning: bool,
    /// Whether it accepts a JSON schema for its output. Known for vendors of the messages format
    /// only; `false` for all others.
    pub supports_json_schema: bool,
    /// Whether it thinks without being asked, and requires its thinking back with the results of
    /// tools.
    pub thinking: bool,
    /// The tokenizer by which its text is counted where the vendor reports no usage.
    pub tokenizer: Tokenizer,
    /// The vendor whose model it is.
    pub vendor: Arc<Vendor>,
}

impl Model {
    /// Returns the endpoints on which it is sold.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        match self.kind {
            ModelKind::Chat if self.vendor.text_api == TextApi::Messages => {
                vec![Endpoint::Chat, Endpoint::Messages]
            }
            ModelKind::Chat if self.vendor.supports_responses => {
                vec![Endpoint::Chat, Endpoint::Responses]
            }
            ModelKind::Chat => vec![Endpoint::Chat],
            ModelKind::Responses => vec![Endpoint::Responses],
            ModelKind::Image => vec![Endpoint::Images, Endpoint::ImageEdits],
            ModelKind::Video => vec![Endpoint::Videos],
            ModelKind::Speech => vec![Endpoint::Speech],
            ModelKind::Embedding => vec![Endpoint::Embeddings],
            ModelKind::Moderation => vec![Endpoint::Moderations],
        }
    }

    /// Returns the fees for the vendor's tools that its calls may have.
    pub(super) fn fees(&self) -> impl Iterator<Item = &FeeRule> {
        let endpoints = self.endpoints();
        let is_sold = move |fee: &&FeeRule| fee.endpoints.iter().any(|e| endpoints.contains(e));
        self.vendor.fees.iter().filter(is_sold)
    }

    /// Returns the number that the rules set for a member if a body lacks it; `None` if they set
    /// none.
    #[must_use]
    pub(crate) fn default_number(&self, endpoint: Endpoint, member: &str) -> Option<u64> {
        let rewrites = self.vendor.rewrites(&self.id, endpoint);
        let defaults = rewrites.flat_map(|rewrite| &rewrite.default);
        defaults.filter(|(name, _)| name == member).find_map(|(_, json)| json.parse().ok())
    }

    /// Returns how the output of a call on `endpoint` is limited at the vendor; `None` if it cannot
    /// be: the vendor has no such member, or its limit does not cover hidden reasoning.
    #[must_use]
    pub(crate) fn output_limit(&self, endpoint: Endpoint) -> Option<&OutputLimitRule> {
        let format = match self.vendor.text_api {
            TextApi::Messages => Endpoint::Messages,
            TextApi::Chat => endpoint,
        };
        let covers_output = !self.hidden_reasoning || self.vendor.limit_covers_reasoning;
        let mut rules = self.vendor.output_limits.iter().filter(|_| covers_output);
        rules.find(|rule| rule.applies_to(format))
    }

    /// Applies the rewrites of the rules to a body.
    pub fn rewrite(&self, endpoint: Endpoint, patch: &mut JsonPatch<'_>) {
        self.vendor.rewrites(&self.id, endpoint).for_each(|rewrite| rewrite.apply(patch));
        if !self.supports_effort && endpoint == Endpoint::Chat {
            patch.remove("reasoning_effort");
        }
    }

    /// Returns its entry in the model listing under a name, which is its id or an alias. The prices
    /// are those at the time `at` (unix seconds) of accounts with this price book; the list prices
    /// without one.
    #[must_use]
    pub fn listing(&self, name: &str, at: i64, book: Option<&PriceBook>) -> Json {
        let sold_on = self.endpoints();
        let endpoints: Vec<&str> = sold_on.iter().map(|endpoint| endpoint.path()).collect();
        let price = AccountPrice::new(self, book);
        let mut listing = json!({
            "id": name,
            "object": "model",
            "created": 0,
            "display_name": name,
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": &*self.vendor.name,
            "type": self.kind.name(),
            "endpoints": endpoints,
            "supports_effort": self.supports_effort,
            "context_length": self.context_length,
            "max_output_tokens": self.output_max,
            // Under these names the SDK of the messages format reads both limits.
            "max_input_tokens": self.context_length,
            "max_tokens": self.output_max,
            // And here some agents look for them.
            "top_provider": {
                "context_length": self.context_length,
                "max_completion_tokens": self.output_max,
            },
            "pricing": pricing_json(price, at),
        });
        let fees: Vec<Json> =
            self.fees().map(|fee| fee.listing(&sold_on, price.factor())).collect();
        if !fees.is_empty() {
            listing["pricing"]["fees"] = fees.into();
        }
        if name != self.id {
            listing["alias_of"] = self.id.as_str().into();
        }
        listing
    }
}

fn pricing_json(price: AccountPrice<'_>, at: i64) -> Json {
    match price.price() {
        Price::Tokens(tokens) => Json::Object(token_pricing(tokens, price, at)),
        Price::Image { tokens, reservation } => {
            let mut pricing = token_pricing(tokens, price, at);
            let reservation = price.amount_usd_string(*reservation);
            pricing.insert("image_reservation".to_owned(), reservation.into());
            Json::Object(pricing)
        }
        Price::Video(rates) => {
            let second = |(resolution, rate): &(VideoResolution, Rate)| {
                (resolution.name().to_owned(), price.rate_usd_string(*rate).into())
            };
            json!({ "second": Json::Object(rates.iter().map(second).collect()) })
        }
        Price::Speech(rate) => json!({ "character": price.rate_usd_string(*rate) }),
        Price::Free => {
            let free = Rate::ZERO.to_usd_string();
            json!({ "prompt": free, "completion": free })
        }
    }
}

/// Returns the prices of `tokens`, which are those of `price` before its factor.
fn token_pricing(tokens: &TokenPrice, price: AccountPrice<'_>, at: i64) -> Map<String, Json> {
    let mut pricing = rates_json(&tokens.base_rates_at(at), price);
    let above =
        tokens.input_tiers.iter().map(|(over, r)| (("above_input_tokens", (*over).into()), r));
    let from = tokens.dated_rates.iter().filter_map(|(since, r)| {
        let moment = jiff::Timestamp::from_second(*since).ok()?;
        Some((("from_date", moment.strftime("%Y-%m-%d").to_string().into()), r))
    });
    let tier = |((name, when), r): ((&str, Json), &TokenRates)| {
        let mut tier = Map::from_iter([(name.to_owned(), when)]);
        tier.extend(rates_json(r, price));
        Json::Object(tier)
    };
    let tiers: Vec<Json> = above.chain(from).map(tier).collect();
    if !tiers.is_empty() {
        pricing.insert("tiers".to_owned(), tiers.into());
    }
    pricing
}

fn rates_json(rates: &TokenRates, price: AccountPrice<'_>) -> Map<String, Json> {
    let mut map = Map::new();
    map.insert("prompt".to_owned(), price.rate_usd_string(rates.input).into());
    map.insert("completion".to_owned(), price.rate_usd_string(rates.output).into());
    let cached = [
        ("input_cache_read", rates.cache_read),
        ("input_cache_write", rates.cache_write),
        ("input_cache_write_1h", rates.cache_write_1h),
    ];
    for (name, rate) in cached {
        if let Some(rate) = rate {
            map.insert(name.to_owned(), price.rate_usd_string(rate).into());
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::Money;
    use crate::money::factor::PriceFactor;

    const JANUARY_2027: i64 = 1_798_761_600;

    fn rates(input: u32, output: u32) -> TokenRates {
        TokenRates {
            input: Rate::from_nano(input),
            output: Rate::from_nano(output),
            ..TokenRates::default()
        }
    }

    #[test]
    fn the_listing_told_the_old_price_after_it_had_changed() {
        let from = vec![(JANUARY_2027, rates(1_500, 7_500))];
        let price = TokenPrice { base: rates(750, 3_750), input_tiers: vec![], dated_rates: from };
        let prices_at = |at: i64| {
            let tokens = Price::Tokens(price.clone());
            let pricing = pricing_json(AccountPrice::list(&tokens), at);
            let tiers = json!([{
                "from_date": "2027-01-01", "prompt": "0.0000015", "completion": "0.0000075",
            }]);
            assert_eq!(pricing["tiers"], tiers, "the tiers stay");
            [pricing["prompt"].clone(), pricing["completion"].clone()]
        };
        assert_eq!(prices_at(JANUARY_2027 - 1), ["0.00000075", "0.00000375"]);
        assert_eq!(prices_at(JANUARY_2027), ["0.0000015", "0.0000075"]);
    }

    #[test]
    fn the_listing_tells_the_prices_times_the_factor_exactly() {
        let factor = PriceFactor::parse("0.85").expect("a factor");
        let told = |price: &Price| pricing_json(AccountPrice::with_factor(price, factor), 0);
        let tiers = vec![(9, rates(10_000, 30_001))];
        let tokens = TokenPrice { input_tiers: tiers, base: rates(5_000, 1), dated_rates: vec![] };
        let expected = json!({
            "prompt": "0.00000425", "completion": "0.00000000085",
            "tiers": [{
                "above_input_tokens": 9, "prompt": "0.0000085", "completion": "0.00002550085",
            }],
        });
        assert_eq!(told(&Price::Tokens(tokens.clone())), expected);
        let reservation = Money::from_nano(100_000_000).expect("money");
        let image = told(&Price::Image { tokens, reservation });
        assert_eq!(image["image_reservation"], "0.085");
        let second = Rate::from_nano(70_000_000);
        let video = told(&Price::Video(vec![(VideoResolution::P720, second)]));
        assert_eq!(video, json!({ "second": { "720p": "0.0595" } }));
        assert_eq!(
            told(&Price::Speech(Rate::from_nano(15_000))),
            json!({ "character": "0.00001275" })
        );
    }
}
