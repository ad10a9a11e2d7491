//! Computes the most that a call may cost, and places and extends the hold for it.

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

/// The smallest charge of a call that is not free.
const CHARGE_MIN: Money = match Money::from_nano(1) {
    Ok(least) => least,
    Err(_) => Money::ZERO,
};

/// The amounts to hold for a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallQuote {
    /// The amount to hold before a vendor is called. A stream holds the estimate of its output,
    /// whatever its limit is, because its hold grows with it: a client that sends a high limit with
    /// each call would otherwise hold its whole balance.
    pub(crate) hold: Quote,
    /// The hold that covers the call at its largest.
    pub(crate) full_hold: Money,
}

/// Returns the amounts to hold for a call; `None` if the call is free. `earlier_input_tokens` is
/// the number of input tokens of earlier responses that the vendor reads again.
///
/// # Errors
/// The cost exceeds any balance, or the model has no price for the requested video resolution.
pub(crate) fn quote_call(
    model: &Model,
    call: &ModelCall,
    earlier_input_tokens: u64,
    priced_at: i64,
) -> Result<Option<CallQuote>, ApiError> {
    let quote = |estimate| quote_output(model, call, earlier_input_tokens, priced_at, estimate);
    let Some(full) = quote(None)? else { return Ok(None) };
    let estimated =
        if call.stream { quote(Some(model.vendor.output_tokens_default))? } else { None };
    Ok(Some(CallQuote { hold: estimated.unwrap_or(full), full_hold: full.wanted }))
}

/// Returns the quote of a call whose output is as long as its limit allows, but at most
/// `estimate` tokens for each choice, if there is an estimate.
fn quote_output(
    model: &Model,
    call: &ModelCall,
    earlier_input_tokens: u64,
    priced_at: i64,
    estimate: Option<u64>,
) -> Result<Option<Quote>, ApiError> {
    let input_max = |content: &InputSize| {
        input_tokens_max(content, &model.vendor).saturating_add(earlier_input_tokens)
    };
    let text = |price: &TokenPrice, input: u64, output_max: Option<u64>, choices: u64| {
        let input = model.context_length.map_or(input, |most| input.min(most));
        let output = output_max.unwrap_or(model.vendor.output_tokens_default);
        let output = estimate.map_or(output, |most| output.min(most)).saturating_mul(choices);
        price.quote(input, output, priced_at)
    };
    match (&model.price, &call.kind) {
        (Price::Free, _) | (_, RequestKind::TokenCount { .. }) => return Ok(None),
        (Price::Tokens(price), RequestKind::Chat { text: t, .. } | RequestKind::Messages(t)) => {
            let quote = text(price, input_max(&t.input_size), t.output_max, t.choices);
            quote.map_err(|_| field_too_large("max_tokens"))
        }
        (Price::Tokens(price), RequestKind::Responses(request)) => {
            let quote = text(price, input_max(&request.input_size), request.output_max, 1);
            quote.map_err(|_| field_too_large("max_output_tokens"))
        }
        (Price::Tokens(price), RequestKind::Embeddings(inputs)) => {
            price.quote(inputs.tokens_max, 0, priced_at).map_err(|_| field_too_large("input"))
        }
        (Price::Image { reservation, .. }, RequestKind::Image { .. }) => {
            Ok(Quote::exactly(*reservation))
        }
        (Price::Speech(rate), RequestKind::Speech { characters }) => {
            rate.checked_mul(*characters).map(Quote::exactly).map_err(|_| field_too_large("input"))
        }
        (price @ Price::Video(rates), RequestKind::Video { request, .. }) => {
            let VideoRequest { seconds, resolution, .. } = *request;
            let cost =
                price.cost(BilledUnits::Video { seconds, resolution, ticks: None }, priced_at);
            let sold: Vec<VideoResolution> =
                rates.iter().map(|(resolution, _)| *resolution).collect();
            let unsold = |_| {
                ApiError::Admission(AdmissionError::InvalidCall(
                    request.unsupported_resolution(&model.id, &sold),
                ))
            };
            cost.map(Quote::exactly).map_err(unsold)
        }
        // A model is sold only on the endpoints that its kind of price is for.
        _ => Err(ServerError::Internal.into()),
    }
    .map(Some)
}

fn field_too_large(field: &str) -> ApiError {
    CallError::invalid(field, "smaller: its cost exceeds any balance").into()
}

/// Returns an upper estimate of the input tokens. Every token is at least one byte of text. For an
/// image, a document of pages and the prompts that a vendor adds for tools, the vendor's rules give
/// the maximum. The bytes of the JSON around the text make up for the vendor's own framing.
fn input_tokens_max(content: &InputSize, vendor: &Vendor) -> u64 {
    let InputSize { images, documents, vendor_tool_prompt_count: tools, text_bytes, .. } = *content;
    let tokens = [
        text_bytes,
        images.saturating_mul(vendor.image_tokens_max),
        documents.saturating_mul(vendor.document_tokens_max),
        tools.saturating_mul(vendor.tool_tokens_max),
    ];
    tokens.into_iter().fold(0, u64::saturating_add)
}

/// Refuses an account that has no available money, and no held money that may become available,
/// before a large body is read. If the ledger does not answer, the call goes on, because the
/// balance is checked again when the hold is placed.
///
/// # Errors
/// The account has no money.
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

/// Returns why a call is refused whose hold the available money does not cover: if money that is
/// held for other calls would make up for it, the client should try again soon.
pub(crate) async fn describe_shortage(
    gateway: &Gateway,
    account: &AccountName,
    least: Money,
    available: Money,
) -> ApiError {
    let found = gateway.with_ledger_timeout("balances", gateway.ledger.balances(account)).await;
    match found {
        Ok(Some(now)) if now.held.checked_add(now.available).is_ok_and(|sum| sum >= least) => {
            AdmissionError::CreditInUse { least, available, held: now.held }.into()
        }
        _ => AdmissionError::InsufficientBalance { least, available }.into(),
    }
}

impl Gateway {
    /// Places a hold within the ledger's deadline, and keeps it alive. If the ledger gives no
    /// answer to the request in time, the hold is voided, because it may have been made
    /// nevertheless.
    pub(crate) async fn place_hold(
        &self,
        key: &Arc<KeyRecord>,
        id: &str,
        quote: Quote,
    ) -> Result<Funding, HoldRefused> {
        let (account, mut hold_requested) = (&key.account, false);
        let holding = async {
            self.ledger.accepts_holds().await?;
            hold_requested = true;
            let lease_ms = self.timeouts.lease_ms();
            ledger::place_hold(&*self.ledger, account, id, quote, unix_ms(), lease_ms).await
        };
        let made = self.with_ledger_timeout("hold", holding).await;
        if let Err(HoldRefused::Unavailable(why)) = &made {
            log::warn!(event = "hold_failed", request_id = id, error:% = why; "hold failed");
            if hold_requested {
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

    /// Extends the hold of a call to `wanted` in total, or as far as the balance allows. Returns
    /// the amount now held; zero for a free call.
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
