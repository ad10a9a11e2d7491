//! The money of a call: what it may come to at most, and the hold for it.

use std::sync::Arc;

use crate::catalogue::{Model, Vendor};
use crate::clock::unix_ms;
use crate::dialect::CallError;
use crate::dialect::call::{InputSize, ModelCall, RequestKind};
use crate::dialect::videos::VideoRequest;
use crate::gateway::api_error::{AdmissionError, ApiError, ServerError};
use crate::gateway::settlement::funding::Funding;
use crate::gateway::state::Gateway;
use crate::ledger::{self, AccountName, HoldRefused, KeyRecord, Unavailable, lease};
use crate::money::price::{Price, Quote, TokenPrice};
use crate::money::{BilledUnits, Money, VideoResolution};

/// No call that costs anything costs less.
const CHARGE_MIN: Money = match Money::from_nano(1) {
    Ok(least) => least,
    Err(_) => Money::ZERO,
};

/// What to hold for a call; `None` if it costs nothing. `earlier` are input tokens of earlier
/// answers that the vendor reads again.
///
/// # Errors
/// No balance covers it.
pub(crate) fn quote_call(
    model: &Model,
    call: &ModelCall,
    earlier: u64,
    at: i64,
) -> Result<Option<Quote>, ApiError> {
    let input_max =
        |content: &InputSize| input_tokens_max(content, &model.vendor).saturating_add(earlier);
    let text = |price: &TokenPrice, input: u64, output_max: Option<u64>, choices: u64| {
        let input = model.context_length.map_or(input, |most| input.min(most));
        let output =
            output_max.unwrap_or(model.vendor.output_tokens_default).saturating_mul(choices);
        price.quote(input, output, at)
    };
    match (&model.price, &call.kind) {
        (Price::Free, _) => return Ok(None),
        (Price::Tokens(price), RequestKind::Chat { text: t, .. } | RequestKind::Messages(t)) => {
            let quote = text(price, input_max(&t.input_size), t.output_max, t.choices);
            quote.map_err(|_| field_too_large("max_tokens"))
        }
        (Price::Tokens(price), RequestKind::Responses(ask)) => {
            let quote = text(price, input_max(&ask.input_size), ask.output_max, 1);
            quote.map_err(|_| field_too_large("max_output_tokens"))
        }
        (Price::Tokens(price), RequestKind::Embeddings(inputs)) => {
            price.quote(inputs.tokens_max, 0, at).map_err(|_| field_too_large("input"))
        }
        (Price::Image { reservation, .. }, RequestKind::Image { .. }) => {
            Ok(Quote::exactly(*reservation))
        }
        (Price::Speech(rate), RequestKind::Speech { characters }) => {
            rate.checked_mul(*characters).map(Quote::exactly).map_err(|_| field_too_large("input"))
        }
        (price @ Price::Video(rates), RequestKind::Video { ask, .. }) => {
            let VideoRequest { seconds, resolution, .. } = *ask;
            let cost = price.cost(BilledUnits::Video { seconds, resolution, ticks: None }, at);
            let sold: Vec<VideoResolution> =
                rates.iter().map(|(resolution, _)| *resolution).collect();
            let unsold = |_| {
                ApiError::Admission(AdmissionError::InvalidCall(
                    ask.unsupported_resolution(&model.id, &sold),
                ))
            };
            cost.map(Quote::exactly).map_err(unsold)
        }
        // A model is not sold on an endpoint that its price is not for.
        _ => Err(ServerError::Internal.into()),
    }
    .map(Some)
}

fn field_too_large(field: &str) -> ApiError {
    CallError::invalid(field, "smaller: its cost exceeds any balance").into()
}

/// An upper estimate of the input's tokens: no token is less than a byte of text; an image, a
/// document of pages and what a vendor adds for tools are as much as its rules say. The JSON around
/// the text makes up for the vendor's own framing.
fn input_tokens_max(content: &InputSize, vendor: &Vendor) -> u64 {
    let InputSize { images, documents, tool_prompts: tools, text_bytes, .. } = *content;
    let tokens = [
        text_bytes,
        images.saturating_mul(vendor.image_tokens_max),
        documents.saturating_mul(vendor.document_tokens_max),
        tools.saturating_mul(vendor.tool_tokens_max),
    ];
    tokens.into_iter().fold(0, u64::saturating_add)
}

/// Refuses an account that has nothing, and nothing on hold that may come back, before a large body
/// is read. While the ledger does not answer, that is left to the hold.
///
/// # Errors
/// There is no money.
pub(crate) async fn check_balance(
    gateway: &Gateway,
    account: &AccountName,
) -> Result<(), ApiError> {
    let found = gateway.with_ledger_timeout("balances", gateway.ledger.balances(account)).await;
    let Ok(Some(balances)) = found else { return Ok(()) };
    if balances.available > Money::ZERO || balances.held > Money::ZERO {
        return Ok(());
    }
    Err(AdmissionError::InsufficientBalance { least: CHARGE_MIN, available: balances.available }
        .into())
}

impl Gateway {
    /// Holds money, within the ledger's deadline, and keeps the hold alive. If the deadline passes
    /// after it was asked for, the hold is taken back, since it may have been made all the same.
    pub(crate) async fn place_hold(
        &self,
        key: &Arc<KeyRecord>,
        id: &str,
        quote: Quote,
    ) -> Result<Funding, HoldRefused> {
        let (account, mut asked) = (&key.account, false);
        let holding = async {
            self.ledger.accepts_holds().await?;
            asked = true;
            let lease_ms = self.timeouts.lease_ms();
            ledger::place_hold(&*self.ledger, account, id, quote, unix_ms(), lease_ms).await
        };
        let made = self.with_ledger_timeout("hold", holding).await;
        if let Err(HoldRefused::Unavailable(why)) = &made {
            log::warn!(event = "hold_failed", request_id = id, why:% = why; "hold failed");
            if asked {
                self.void_unknown_hold(account.clone(), id.to_owned());
            }
        }
        let hold = made?;
        let lease = self.leases.keep_alive(lease::LeaseEntry {
            account: account.clone(),
            id: id.to_owned(),
            item: lease::LeasedItem::Hold { origin: hold.origin(), held: hold.held() },
        });
        Ok(Funding::Held { hold, key: key.clone(), lease })
    }

    /// Extends the hold of a call to `wanted` in total, or as far as the balance allows. Gives the
    /// amount now held; zero for a free call.
    pub(crate) async fn extend_hold(
        &self,
        funding: &mut Funding,
        wanted: Money,
    ) -> Result<Money, Unavailable> {
        let Funding::Held { hold, lease, .. } = funding else { return Ok(Money::ZERO) };
        let held = self.with_ledger_timeout("extend", hold.extend(&*self.ledger, wanted)).await?;
        lease.set_held(held);
        Ok(held)
    }
}
