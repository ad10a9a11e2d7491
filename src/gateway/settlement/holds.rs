//! Places and extends the hold of a call.

use std::sync::Arc;
use std::time::Duration;

use crate::catalogue::{AccountPrice, Model};
use crate::clock::unix_ms;
use crate::dialect::call::ModelCall;
use crate::gateway::api_error::{AdmissionError, ApiError};
use crate::gateway::budgets::tenants::{Resource, Tenant};
use crate::gateway::call_rates::{CallRates, RateRefusal};
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::request::rates::CallerPlans;
use crate::gateway::settlement::funding::Funding;
use crate::gateway::settlement::quote::{CallQuote, QuoteContext, is_free, quote_call};
use crate::gateway::settlement::stream_budget::divide;
use crate::gateway::settlement::token_estimate::estimate_call_tokens;
use crate::gateway::state::Gateway;
use crate::ledger::{
    self, AccountName, Balances, Hold, HoldRefused, HoldRequest, KeyRecord, RateAsk, Unavailable,
    lease,
};
use crate::money::Money;
use crate::money::price::Quote;
use crate::settlement::report_dropped_hold;

/// The smallest charge of a call that is not free.
const CHARGE_MIN: Money = match Money::from_nano(1) {
    Ok(least) => least,
    Err(_) => Money::ZERO,
};

/// A balance that was wide this long ago still counts as wide.
const BALANCE_AGE_MAX: Duration = Duration::from_secs(1);

/// A call waits at most this long until its tokens can be counted.
const COUNT_WAIT_MAX: Duration = Duration::from_secs(1);
/// A call that is alone may hold this part of a short balance, one in this many.
const SHARE_ALONE: i64 = 4;
/// The same for a stream: without a limit, it could go on as long as there is credit.
const STREAM_SHARE_ALONE: i64 = 2;
/// Of calls that run at the same time, each may hold this part of its share.
const SHARE_IN_PARALLEL: i64 = 8;

/// The id that the hold of a call gets, and where the hold may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewHold<'a> {
    /// The id.
    pub(crate) id: &'a str,
    /// Whether the hold may be in the memory of this process only. If the store has a claim for the
    /// call, it must have the hold as well: who takes the claim over asks it for the hold.
    pub(crate) may_be_in_memory: bool,
}

/// A call that is paid for.
pub(crate) struct FundedCall {
    /// The hold of the call.
    pub(crate) funding: Funding,
    /// The limit of output that the vendor must be sent; `None` if the client's own stands.
    pub(crate) output_limit: Option<u64>,
    /// The hold that covers the call at its largest.
    pub(crate) full_hold: Money,
    /// The rate limits of the call.
    pub(crate) rates: CallRates,
}

/// Places the hold of a call. A free call needs no hold.
///
/// The hold covers the call at its largest or, for a stream whose hold grows, the estimate. If the
/// balance or a budget is too short for that, the input is counted, and the hold covers the
/// estimate or the call's share of what there is. The vendor is then sent a limit that the hold
/// covers.
///
/// # Errors
/// A rate limit refuses the call, the balance or a budget does not cover the least amount, or the
/// ledger does not answer.
pub(crate) async fn fund_call(
    gateway: &Gateway,
    new: NewHold<'_>,
    caller: &AuthenticatedCaller,
    plans: &CallerPlans,
    model: &Model,
    call: &ModelCall,
    context: QuoteContext<'_>,
) -> Result<FundedCall, ApiError> {
    if is_free(model, call) {
        let (funding, output_limit, full_hold) = (Funding::Free, None, Money::ZERO);
        let rates = CallRates::default();
        return Ok(FundedCall { funding, output_limit, full_hold, rates });
    }
    let quote = quote_call(model, call, context)?;
    let tokens = || estimate_call_tokens(model, call, context);
    let asks = plans.asks(&caller.key, model, tokens);
    let account = &caller.key.account;
    let shortage = find_shortage(gateway, &caller.tenant, account, quote).await;
    let available = if let Some(available) = shortage {
        available
    } else {
        let preferred = Quote::exactly(quote.preferred());
        match gateway.place_hold(&caller.key, new, preferred, &asks).await {
            Ok(funding) => {
                let (output_limit, full_hold) = (None, quote.full);
                let rates = funding.rates(asks);
                return Ok(FundedCall { funding, output_limit, full_hold, rates });
            }
            Err(why) => match find_room(&why).filter(|_| call.is_text()) {
                Some(room) => room,
                // Nothing makes its cost less.
                None => return Err(Box::pin(describe_refusal(gateway, account, why, asks)).await),
            },
        }
    };
    // Boxed: otherwise the future of every call would include its state.
    let short = ShortBalance { quote, available, asks };
    Box::pin(fund_from_short_balance(gateway, new, caller, model, call, context, short)).await
}

/// Returns the available balance if the account is too short of money for the call at its largest;
/// `None` if it is not.
///
/// A stream and a call without a limit seldom are that large, so all the money of the account
/// counts for them. A whole answer with a limit is held at that limit, so it must fit into its part
/// of what is available. If only one such call runs, the hold itself shows whether it does.
async fn find_shortage(
    gateway: &Gateway,
    tenant: &Tenant,
    account: &AccountName,
    quote: CallQuote,
) -> Option<Money> {
    let tokens = quote.limited_tokens()?;
    let is_held_full = tokens.is_requested && !quote.grows();
    let calls = calls_in_flight(tenant);
    if quote.full <= quote.estimate || (calls == 1 && is_held_full) {
        return None;
    }
    let is_short = |balances: Balances| {
        let Balances { available, held, .. } = balances;
        let covered = if is_held_full {
            divide(available, calls)
        } else {
            available.checked_add(held).unwrap_or(available)
        };
        quote.full > covered
    };
    // Credit may have been added since.
    if tenant.recent_balances(BALANCE_AGE_MAX).is_some_and(|recent| !is_short(recent)) {
        return None;
    }
    let found = gateway.with_ledger_timeout("balances", gateway.ledger.balances(account)).await;
    let Ok(Some(balances)) = found else {
        // Only a whole answer with a limit is held at its largest, whatever the balance is.
        return (!is_held_full).then_some(Money::ZERO);
    };
    tenant.keep_balances(balances);
    is_short(balances).then_some(balances.available)
}

/// Returns how many requests of an account this gateway serves, from 1.
fn calls_in_flight(tenant: &Tenant) -> i64 {
    i64::try_from(tenant.used(Resource::Requests)).unwrap_or(i64::MAX).max(1)
}

/// A balance or a budget that does not cover a call at its largest.
#[derive(Debug, Clone)]
struct ShortBalance {
    /// The quote of the call, with a token a byte of its text.
    quote: CallQuote,
    /// What the account has available, or what the budget leaves.
    available: Money,
    /// What the call takes of rate limits.
    asks: Vec<RateAsk>,
}

impl ShortBalance {
    /// Whether the quote of a stream suffices, so that its text need not be counted.
    fn covers_stream(&self, model: &Model, context: QuoteContext<'_>) -> bool {
        let ShortBalance { quote, available, .. } = *self;
        let limit = quote.limit_for(
            AccountPrice::new(model, context.book),
            quote.reduced(divide(available, STREAM_SHARE_ALONE)),
            context.priced_at,
        );
        quote.grows()
            && quote.reduced(Money::ZERO) <= available
            && limit.is_none_or(|limit| limit >= model.vendor.output_tokens_default)
    }
}

/// Places the hold of a call that the balance or a budget does not cover at its largest.
async fn fund_from_short_balance(
    gateway: &Gateway,
    new: NewHold<'_>,
    caller: &AuthenticatedCaller,
    model: &Model,
    call: &ModelCall,
    mut context: QuoteContext<'_>,
    short: ShortBalance,
) -> Result<FundedCall, ApiError> {
    let account = &caller.key.account;
    let is_covered = short.covers_stream(model, context);
    let ShortBalance { mut quote, available, asks } = short;
    if !is_covered {
        let without_text = QuoteContext { text_tokens_max: Some(0), ..context };
        let smallest = quote_call(model, call, without_text)?;
        if smallest.least <= available {
            context.text_tokens_max = count_text(gateway, &caller.tenant, model, call).await;
        }
        quote = quote_call(model, call, context)?;
    }
    let share = match calls_in_flight(&caller.tenant) {
        1 if quote.grows() => divide(available, STREAM_SHARE_ALONE),
        1 => divide(available, SHARE_ALONE),
        calls => divide(available, calls.saturating_mul(SHARE_IN_PARALLEL)),
    };
    let reduced = Quote { wanted: quote.reduced(share), least: quote.least };
    match gateway.place_hold(&caller.key, new, reduced, &asks).await {
        Ok(funding) => {
            let held = funding.held();
            let price = AccountPrice::new(model, context.book);
            let output_limit = quote.limit_for(price, held, context.priced_at);
            let full_hold = if output_limit.is_some() { held } else { quote.full };
            let rates = funding.rates(asks);
            Ok(FundedCall { funding, output_limit, full_hold, rates })
        }
        Err(why) => {
            if why == HoldRefused::Conflict {
                // The first request, which was refused, was made once more by the store's client.
                gateway.void_unknown_hold(account.clone(), new.id.to_owned());
            }
            Err(describe_refusal(gateway, account, why, asks).await)
        }
    }
}

/// Returns a sure upper bound of the tokens of a call's text, which is lower than its bytes where
/// the vendor's vocabulary is known. `None` if the call's turn does not come in time.
///
/// This may take a good part of a second, so it is done on a thread of its own.
async fn count_text(
    gateway: &Gateway,
    tenant: &Tenant,
    model: &Model,
    call: &ModelCall,
) -> Option<u64> {
    let turns = async {
        let own = tenant.count_turn().acquire_owned().await.ok()?;
        let all = gateway.count_turn.clone().acquire_owned().await.ok()?;
        Some((own, all))
    };
    let turns = tokio::time::timeout(COUNT_WAIT_MAX, turns).await.ok()??;
    let (call, tokenizer) = (call.clone(), model.tokenizer);
    let counting = tokio::task::spawn_blocking(move || {
        let _turns = turns;
        call.text_tokens_max(tokenizer)
    });
    counting.await.ok()
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

/// Returns what the balance or a budget leaves for a call of lower cost; `None` if the cost is not
/// why the hold was refused.
fn find_room(why: &HoldRefused) -> Option<Money> {
    match why {
        HoldRefused::Insufficient { available, .. } => Some(*available),
        HoldRefused::BudgetExceeded { left, .. } | HoldRefused::BudgetInUse { left, .. } => {
            Some(*left)
        }
        HoldRefused::RateLimited { .. }
        | HoldRefused::NoAccount
        | HoldRefused::Conflict
        | HoldRefused::Lent
        | HoldRefused::Unavailable(_) => None,
    }
}

/// Returns why a call is refused whose hold was refused. `asks` is what it takes of rate limits.
pub(crate) async fn describe_refusal(
    gateway: &Gateway,
    account: &AccountName,
    why: HoldRefused,
    asks: Vec<RateAsk>,
) -> ApiError {
    match why {
        HoldRefused::RateLimited { id, retry_after_ms, rates: readings } => {
            let rates = CallRates { asks, readings };
            let refusal = RateRefusal { id, retry_after_ms, rates };
            AdmissionError::RateLimited(Box::new(refusal)).into()
        }
        HoldRefused::Insufficient { least, available } => {
            describe_shortage(gateway, account, least, available).await
        }
        other => other.into(),
    }
}

/// Returns why a call is refused whose hold the available money does not cover: if money that is
/// held for other calls would make up for it, the client should try again soon.
async fn describe_shortage(
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
        NewHold { id, may_be_in_memory }: NewHold<'_>,
        Quote { wanted, least }: Quote,
        rates: &[RateAsk],
    ) -> Result<Funding, HoldRefused> {
        let (account, mut hold_requested) = (&key.account, false);
        let origin = HoldRequest { wanted, least, at: unix_ms(), key: Some(key.id) };
        if may_be_in_memory
            && let Some(hold) = ledger::hold_in_memory(&*self.ledger, account, id, origin, rates)
        {
            return Ok(self.keep_alive(hold, key));
        }
        let holding = async {
            self.ledger.accepts_holds().await?;
            hold_requested = true;
            let lease_ms = self.timeouts.lease_ms();
            ledger::place_hold(&*self.ledger, account, id, origin, rates, lease_ms).await
        };
        let made = self.with_ledger_timeout("hold", holding).await;
        match &made {
            Err(HoldRefused::Unavailable(why)) => {
                log::warn!(event = "hold_failed", request_id = id, error:% = why; "hold failed");
                if hold_requested {
                    self.void_unknown_hold(account.clone(), id.to_owned());
                }
            }
            Err(HoldRefused::Conflict) => log::error!(
                event = "hold_conflict", request_id = id;
                "the ledger knows another hold of this id"
            ),
            _ => {}
        }
        Ok(self.keep_alive(made?, key))
    }

    fn keep_alive(&self, hold: Hold, key: &Arc<KeyRecord>) -> Funding {
        let lease = self.leases.keep_alive(lease::LeaseEntry {
            account: hold.account().clone(),
            id: hold.id().to_owned(),
            item: lease::LeasedItem::Hold {
                origin: hold.origin(),
                held: hold.held(),
                is_in_memory: hold.is_in_memory(),
            },
        });
        let hold = hold.report_drop_to(report_dropped_hold);
        Funding::Held { hold, key: key.clone(), lease }
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
