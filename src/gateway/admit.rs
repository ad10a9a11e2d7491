//! Letting a call in: its model is known and sold here, its fields have a price, money is held.

use std::sync::Arc;

use super::Gateway;
use super::exchange::{Admitted, Exchange, Stage, Terms, Way};
use super::intake::Caller;
use super::refusal::Refusal;
use super::thinking;
use crate::catalogue::vendor::Dialect;
use crate::catalogue::{Catalogue, Model, Vendor};
use crate::dialect::Endpoint;
use crate::dialect::call::{Call, Content, Opened};
use crate::dialect::json::Draft;
use crate::dialect::translate::request::{Manner, Translation};
use crate::ledger::{self, HoldRefused};
use crate::money::price::Quote;

/// Admits a call: afterwards its money is held.
///
/// # Errors
/// Everything that can be wrong with it before a vendor hears of it.
pub async fn admit(
    gateway: &Gateway,
    exchange: &mut Exchange,
    caller: Caller,
    opened: Opened,
    endpoint: Endpoint,
) -> Result<(), Refusal> {
    let catalogue = gateway.catalogue.load();
    let model = model(&catalogue, &opened.model, endpoint)?;
    exchange.record.model = Some(model.clone());
    let call = Call::parse(opened, endpoint).map_err(Refusal::Call)?;
    if let Some(refusal) = model.vendor.screen(endpoint).and_then(|s| s.check(&call.document)) {
        return Err(Refusal::Unpriced(refusal.clone()));
    }
    let token = &model.vendor.token;
    let translation = translation(&caller, &model, &call, endpoint)?;
    let Some(line) = gateway.routes.of(token) else {
        return Err(Refusal::NoRoute(format!("no route to {token} is set up")));
    };
    let at = exchange.arrived_ms / 1_000;
    let mut quote = quote(&model, &call, at)?;
    // A call that continues a tool loop may turn out longer: the least is held until that is known.
    let is_continued = |t: &Translation| model.thinking && !t.loop_ids().is_empty();
    if translation.as_ref().is_some_and(is_continued) {
        quote.wanted = quote.least;
    }
    let hold =
        gateway.hold(&caller.key.account, &exchange.id, quote).await.map_err(|why| match why {
            HoldRefused::Insufficient { least, available } => {
                Refusal::Insufficient { least, available }
            }
            HoldRefused::NoAccount => Refusal::BadKey,
            HoldRefused::Unavailable(_) => Refusal::NoLedger,
            HoldRefused::Conflict => Refusal::Internal,
        })?;
    let way = match (&translation, model.vendor.dialect) {
        (Some(translation), _) => Way::Translated { body: translation.finish(), thinking: None },
        (None, Dialect::Messages) => Way::Unchanged,
        (None, Dialect::Chat) => Way::Spliced,
    };
    let continued = translation.filter(is_continued);
    let terms = Terms {
        model,
        price_version: catalogue.version.clone(),
        at,
        endpoint,
        key: caller.key,
        input_bytes: call.content.text_bytes,
    };
    exchange.stage = Stage::Admitted(Box::new(Admitted {
        call,
        way,
        hold,
        terms,
        untried: line.plan(exchange.arrived_ms).into(),
        route: None,
        body: Vec::new(),
        failed: Vec::new(),
        block: None,
    }));
    if let Some(translation) = continued {
        thinking::restore(gateway, exchange, translation).await;
    }
    Ok(())
}

/// The call in the vendor's format, if that is another one.
fn translation(
    caller: &Caller,
    model: &Model,
    call: &Call,
    endpoint: Endpoint,
) -> Result<Option<Translation>, Refusal> {
    if (model.vendor.dialect, endpoint) != (Dialect::Messages, Endpoint::Chat) {
        return Ok(None);
    }
    let mut draft = Draft::new(&call.document);
    model.rewrite(&mut draft);
    let (account, json_schema) = (caller.key.account.as_str(), model.json_schema);
    let manner = Manner { model: &call.model, account, json_schema };
    Translation::read(&call.document, &draft, manner).map(Some).map_err(Refusal::Call)
}

fn model(catalogue: &Catalogue, asked: &str, endpoint: Endpoint) -> Result<Arc<Model>, Refusal> {
    let Some(model) = catalogue.find(asked) else {
        let closest = catalogue.closest(asked).map(str::to_owned);
        return Err(Refusal::NoModel { asked: asked.to_owned(), closest });
    };
    let sold_on = model.endpoints();
    if !sold_on.contains(&endpoint) {
        let right = sold_on.first().copied().unwrap_or(Endpoint::Chat);
        return Err(Refusal::WrongEndpoint { model: model.id.clone(), right });
    }
    Ok(model.clone())
}

/// An upper estimate of the input's tokens: no token is less than a byte of text; an image, a
/// document of pages and what a vendor adds for tools are as much as its rules say. The JSON around
/// the text makes up for the vendor's own framing.
fn input_bound(call: &Call, vendor: &Vendor) -> u64 {
    let Content { images, documents, tools, text_bytes } = call.content;
    let tokens = [
        text_bytes,
        images.saturating_mul(vendor.image_tokens),
        documents.saturating_mul(vendor.document_tokens),
        tools.saturating_mul(vendor.tool_tokens),
    ];
    tokens.into_iter().fold(0, u64::saturating_add)
}

/// What to hold: an upper bound of the input, and the output asked for, for every choice.
pub(super) fn quote(model: &Model, call: &Call, at: i64) -> Result<Quote, Refusal> {
    // A model that is not sold by tokens is not sold on a text endpoint.
    let price = model.token_price().ok_or(Refusal::Internal)?;
    let bound = input_bound(call, &model.vendor);
    let input = model.context.map_or(bound, |most| bound.min(most));
    let output = call.output_max.unwrap_or(model.vendor.output_tokens).saturating_mul(call.choices);
    price.quote(input, output, at).map_err(|_| {
        Refusal::Call(crate::dialect::CallFault::invalid(
            "max_tokens",
            "smaller: no balance covers so many",
        ))
    })
}

impl Gateway {
    /// Holds money, within the ledger's deadline. If it passes, the hold is taken back, since it
    /// may have been made all the same.
    pub(super) async fn hold(
        &self,
        account: &ledger::AccountName,
        id: &str,
        quote: Quote,
    ) -> Result<ledger::Hold, HoldRefused> {
        let lease_ms = self.timeouts.lease_ms();
        let ledger = &*self.ledger;
        let holding = ledger::hold(ledger, account, id, quote, lease_ms);
        let held = self.in_time("hold", holding).await;
        if let Err(HoldRefused::Unavailable(why)) = &held {
            log::warn!(request_id = id, why:% = why; "no hold");
            self.take_back(account.clone(), id.to_owned());
        }
        held
    }
}
