//! Letting a call in: its model is known and sold here, its fields have a price, money is held.

use std::sync::Arc;

use super::Gateway;
use super::exchange::{Admitted, Exchange, Stage, Terms};
use super::intake::Caller;
use super::refusal::Refusal;
use crate::catalogue::vendor::Dialect;
use crate::catalogue::{Catalogue, Model};
use crate::dialect::Endpoint;
use crate::dialect::chat::{Call, Opened};
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
    let call = Call::parse(opened).map_err(Refusal::Call)?;
    if let Some(refusal) = model.vendor.screen(endpoint).and_then(|s| s.check(&call.document)) {
        let (field, because) = (refusal.field.clone(), refusal.because.clone());
        return Err(Refusal::Unpriced { field, because });
    }
    let token = &model.vendor.token;
    if model.vendor.dialect == Dialect::Messages {
        let why = format!("models of {token} are not served on {} yet", endpoint.path());
        return Err(Refusal::NoRoute(why));
    }
    let Some(line) = gateway.routes.of(token) else {
        return Err(Refusal::NoRoute(format!("no route to {token} is set up")));
    };
    let at = exchange.arrived_ms / 1_000;
    let quote = quote(&model, &call, at)?;
    let hold =
        gateway.hold(&caller.key.account, &exchange.id, quote).await.map_err(|why| match why {
            HoldRefused::Insufficient { least, available } => {
                Refusal::Insufficient { least, available }
            }
            HoldRefused::NoAccount => Refusal::BadKey,
            HoldRefused::Unavailable(_) => Refusal::NoLedger,
            HoldRefused::Conflict => Refusal::Internal,
        })?;
    let terms = Terms {
        model,
        price_version: catalogue.version.clone(),
        at,
        endpoint,
        key: caller.key,
        input_bytes: call.text_bytes,
    };
    exchange.stage = Stage::Admitted(Box::new(Admitted {
        call,
        hold,
        terms,
        untried: line.plan(exchange.arrived_ms).into(),
        route: None,
        body: Vec::new(),
        failed: Vec::new(),
        block: None,
    }));
    Ok(())
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

/// What to hold: an upper bound of the input, and the output asked for, for every choice.
fn quote(model: &Model, call: &Call, at: i64) -> Result<Quote, Refusal> {
    // A model that is not sold by tokens is not sold on a text endpoint.
    let price = model.token_price().ok_or(Refusal::Internal)?;
    let bound = call.input_bound(model.vendor.image_tokens);
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
    async fn hold(
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
