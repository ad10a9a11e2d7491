//! Notes what rate limits did to a request: for the head of its answer, in the metrics and in the
//! log. It also counts the requests that cost nothing.

use std::time::Duration;

use moka::sync::Cache;
use once_cell::sync::Lazy;

use super::api_error::{AdmissionError, ApiError, ErrorFormat, ScopeError};
use super::context::RequestContext;
use super::rate_headers::RateHeaders;
use super::state::Gateway;
use crate::catalogue::Model;
use crate::clock::{monotonic_ms, unix_ms};
use crate::gateway::request::rates::CallerPlans;
use crate::ledger::{AccountName, BudgetOwner, KeyRecord, RateId};
use crate::metrics::METRICS;

/// The same is logged again after this time.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// What was logged is remembered of at most this many accounts, plans and price books.
const LOGGED_MAX: u64 = 10_000;

/// What was logged lately.
static LOGGED: Lazy<Cache<String, ()>> =
    Lazy::new(|| Cache::builder().max_capacity(LOGGED_MAX).time_to_live(LOG_INTERVAL).build());

/// Notes the rate limits of a call that was admitted, which are in `ctx.rates`. Afterwards every
/// answer tells of them. A call without limits costs nothing.
pub(crate) fn note_rates(gateway: &Gateway, ctx: &mut RequestContext) {
    if ctx.rates.readings.is_empty() {
        return;
    }
    let model = ctx.access_log.model.clone();
    make_headers(gateway, ctx, model.as_deref());
    note_exceeded(ctx);
}

/// Notes that a request is refused, if rate limits, plans or price books are the reason.
pub(crate) fn note_refusal(gateway: &Gateway, ctx: &mut RequestContext, refusal: &ApiError) {
    match refusal {
        ApiError::Admission(AdmissionError::RateLimited(refusal)) => {
            count_limited(refusal.id, "enforce");
            // What costs nothing has its headers already, also before its model is known.
            if ctx.rate_headers.is_empty() {
                ctx.rates.clone_from(&refusal.rates);
                let model = ctx.access_log.model.clone();
                make_headers(gateway, ctx, model.as_deref());
            }
        }
        ApiError::Scope(ScopeError::UnknownPlan(plan)) if is_news(format!("plan {plan}")) => {
            log::error!(
                event = "plan_not_found",
                plan = plan.as_str(),
                account = account_of(ctx),
                request_id = ctx.id;
                "plan not found, all calls that need it are refused"
            );
        }
        ApiError::Scope(ScopeError::UnknownBook(book)) if is_news(format!("book {book}")) => {
            log::error!(
                event = "book_not_found",
                book = book.as_str(),
                account = account_of(ctx),
                request_id = ctx.id;
                "price book not found, all paid calls of its accounts are refused"
            );
        }
        _ => {}
    }
}

/// Counts a request of a key that costs nothing. `model` is the name of the model that it is for,
/// if it is for one.
///
/// # Errors
/// A rate limit does not allow the request now, or a plan of the caller is not set up here.
pub(crate) fn count_free_request(
    gateway: &Gateway,
    ctx: &mut RequestContext,
    key: &KeyRecord,
    model: Option<&str>,
) -> Result<(), ApiError> {
    let catalogue = gateway.catalogue.load();
    let plans = CallerPlans::find(&catalogue.plans, key)?;
    let model = model.and_then(|name| catalogue.find(name));
    let asks = plans.free_asks(key.id, model.map(|model| model.id.as_str()));
    if asks.is_empty() {
        return Ok(());
    }
    let now_ms = i64::try_from(monotonic_ms()).unwrap_or(i64::MAX);
    let taken = gateway.free_rates.take(&key.account, asks, now_ms);
    ctx.rates = match &taken {
        Ok(rates) => rates.clone(),
        Err(refusal) => refusal.rates.clone(),
    };
    make_headers(gateway, ctx, model.map(|model| &**model));
    match taken {
        Ok(_) => {
            note_exceeded(ctx);
            Ok(())
        }
        Err(refusal) => Err(AdmissionError::RateLimited(Box::new(refusal)).into()),
    }
}

/// Makes the headers of `ctx.rates`. `model` is the one of the call, whose vendor's headers clients
/// of the messages format know.
fn make_headers(gateway: &Gateway, ctx: &mut RequestContext, model: Option<&Model>) {
    let mut headers = RateHeaders::of_call(&ctx.rates);
    let model = model.filter(|_| ctx.error_format == ErrorFormat::Messages);
    if let Some(model) = model.filter(|_| !headers.is_empty()) {
        let vendor = &model.vendor.name;
        let routes = gateway.routes.for_vendor(vendor);
        headers.add_messages_headers(&ctx.rates, unix_ms(), |end| {
            let neutral = format!("{vendor}-{end}");
            match routes {
                Some(routes) => routes.answer_header_name(&neutral),
                None => neutral,
            }
        });
    }
    ctx.rate_headers = headers;
}

/// Counts the limits that the call is above and that refuse nothing.
fn note_exceeded(ctx: &RequestContext) {
    for (ask, reading) in ctx.rates.asks.iter().zip(&ctx.rates.readings) {
        if !reading.is_exceeded {
            continue;
        }
        count_limited(ask.id, "shadow");
        let account = account_of(ctx);
        if is_news(format!("shadow {account}")) {
            log::info!(
                event = "rate_limit_shadow",
                account,
                limit:% = ask.id,
                size = ask.limit.burst,
                request_id = ctx.id;
                "call above a rate limit that refuses nothing"
            );
        }
    }
}

fn account_of(ctx: &RequestContext) -> &str {
    ctx.access_log.account.as_ref().map_or("", AccountName::as_str)
}

/// Counts a call above a limit.
fn count_limited(id: RateId, mode: &str) {
    let scope = match id.owner {
        BudgetOwner::Account => "account",
        BudgetOwner::Key(_) => "key",
    };
    METRICS.limited.with_label_values(&[scope, id.kind.name(), mode]).inc();
}

/// Whether something was not logged lately. It counts as logged from now on.
fn is_news(what: String) -> bool {
    LOGGED.entry(what).or_insert(()).is_fresh()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::call_rates::CallRates;
    use crate::ledger::{RateAsk, RateKind, RateLimit, RateReading};

    #[test]
    fn the_same_is_no_news_for_a_while() {
        assert!(is_news("a test of one".to_owned()));
        assert!(!is_news("a test of one".to_owned()));
        assert!(is_news("a test of another one".to_owned()));
    }

    #[test]
    fn a_call_is_counted_for_each_limit_that_it_is_above() {
        let ask = |kind| RateAsk {
            id: RateId { owner: BudgetOwner::Account, kind, row: 0 },
            limit: RateLimit { per_minute: 1, burst: 1 },
            amount: 1,
            is_shadow: true,
        };
        let reading = |is_exceeded| RateReading { remaining: 0, is_exceeded };
        let mut ctx = RequestContext::begin();
        ctx.rates = CallRates {
            asks: vec![ask(RateKind::Requests), ask(RateKind::Tokens)],
            readings: vec![reading(false), reading(true)],
        };
        let counted = |kind: RateKind| {
            METRICS.limited.with_label_values(&["account", kind.name(), "shadow"]).get()
        };
        let before = [RateKind::Requests, RateKind::Tokens].map(counted);
        note_exceeded(&ctx);
        let after = [RateKind::Requests, RateKind::Tokens].map(counted);
        assert_eq!(after, [before[0], before[1] + 1]);
    }
}
