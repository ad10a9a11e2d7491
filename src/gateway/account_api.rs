//! What customers are told of their account, with the keys with which they make their calls: the
//! balance, the key, the charge of one call, and the list of charges.

use json_object::JsonObjectWriter;
use query::AccountQuery;

use super::api_error::{ApiError, ApiKeyError, ServerError};
use super::local_response::LocalResponse;
use super::state::Gateway;
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::ledger::Balances;

mod charges;
mod generation;
mod json_object;
mod key_view;
mod organization;
mod parameters;
pub(crate) mod query;
pub(crate) mod searches;
mod shown_line;
mod usage;

/// Answers what a request asks of its own account.
///
/// # Errors
/// A parameter is invalid, there is no such call, too much is searched for at the moment, or the
/// ledger does not answer.
pub(super) async fn answer_query(
    gateway: &Gateway,
    caller: &AuthenticatedCaller,
    query: AccountQuery,
) -> Result<LocalResponse, ApiError> {
    let body = match query {
        AccountQuery::Credits => show_credits(gateway, caller).await,
        AccountQuery::Key => key_view::show_key(gateway, caller).await,
        AccountQuery::Generation(id) => generation::find_generation(gateway, caller, &id).await,
        AccountQuery::Charges(page) => charges::list_charges(gateway, caller, page).await,
        AccountQuery::Usage(asked) => usage::show_usage(gateway, caller, asked).await,
        AccountQuery::Report(asked) => organization::show_report(gateway, caller, asked).await,
    };
    body.map(LocalResponse::ok)
}

async fn show_credits(gateway: &Gateway, caller: &AuthenticatedCaller) -> Result<String, ApiError> {
    let balances = gateway.ledger.balances(&caller.key.account);
    let balances = gateway.with_ledger_timeout("balances", balances).await;
    let balances = balances.map_err(|_| ServerError::LedgerUnavailable)?;
    Ok(credits_json(&balances.ok_or(ApiKeyError::Unknown)?))
}

/// Builds the one body that clients of two formats read: one has the amounts as texts, the other
/// as numbers. What the account could not pay is no part of what it has used.
fn credits_json(balances: &Balances) -> String {
    let used = balances.posted.saturating_sub(balances.written_off);
    let data = JsonObjectWriter::new().usd("total_credits", balances.credit);
    let data = data.usd("total_usage", used).finish();
    JsonObjectWriter::new()
        .text("balance", balances.available.to_string().as_str())
        .text("total_used", used.to_string().as_str())
        .json("data", &data)
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::Money;

    #[test]
    fn the_balance_is_told_in_two_formats_to_the_nano() {
        let nano = |nano| Money::from_nano(nano).expect("not negative");
        let balances = Balances {
            credit: nano(5_000_000_000),
            available: nano(4_766_735_660),
            held: Money::ZERO,
            posted: nano(233_264_347),
            written_off: nano(7),
        };
        let expected = concat!(
            r#"{"balance":"4.76673566","total_used":"0.23326434","#,
            r#""data":{"total_credits":5.0,"total_usage":0.23326434}}"#
        );
        assert_eq!(credits_json(&balances), expected);
        let empty = r#"{"balance":"0.00","total_used":"0.00","data":{"total_credits":0.0,"total_usage":0.0}}"#;
        assert_eq!(credits_json(&Balances::default()), empty);
    }
}
