//! `/admin/v1/statements`: the statement of an account for a month.

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::amounts::parse_account_name;
use super::error::AdminError;
use super::extract::QueryParameters;
use super::state::AdminApi;
use crate::management::actor::Actor;
use crate::management::context::ManagementContext;
use crate::management::error::ManagementError;
use crate::management::statements::read_statement;
use crate::statement::{StatementMonth, write_view};

/// The parameters of a statement.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatementParameters {
    /// The name of the account.
    account: String,
    /// The month (UTC).
    #[param(example = "2026-11")]
    month: String,
}

/// The statement of an account for a month. It is sealed once the month is over: then it has a
/// number, and never changes.
#[derive(Debug, ToSchema)]
#[cfg_attr(test, derive(Deserialize), serde(deny_unknown_fields))]
#[expect(dead_code, reason = "it describes the reply, which is the text that is stored")]
pub(super) struct StatementReply {
    /// Whether the statement is final. The month that runs is told so far.
    sealed: bool,
    /// The number of the statement, consecutive over all accounts; null if it is not sealed.
    number: Option<u64>,
    /// When it was sealed (RFC 3339); null if it is not.
    #[schema(example = "2026-12-01T00:04:10Z")]
    sealed_at: Option<String>,
    /// The SHA-256 of the bytes of `statement`, in hexadecimal digits; null if it is not sealed.
    sha256: Option<String>,
    /// Until when it tells what happened (RFC 3339).
    as_of: String,
    statement: StatementDetail,
}

/// What an account opened with, what happened in the month, and what it closed with: `closing` is
/// `opening` + `payments` + `grants` - `refunds` - `expiries` - `charges` + `corrections` +
/// `written_off` - `corrections_not_paid`.
#[derive(Debug, ToSchema)]
#[cfg_attr(test, derive(Deserialize), serde(deny_unknown_fields))]
#[expect(dead_code, reason = "it describes the reply, which is the text that is stored")]
pub(super) struct StatementDetail {
    /// The version of this object, 1.
    version: u32,
    account: String,
    #[schema(example = "2026-11")]
    month: String,
    /// The first day (UTC).
    #[schema(example = "2026-11-01")]
    from: String,
    /// The day after the last one (UTC).
    #[schema(example = "2026-12-01")]
    to: String,
    /// `USD`.
    currency: String,
    opening_nano: i64,
    opening_usd: String,
    payments_nano: i64,
    payments_usd: String,
    grants_nano: i64,
    grants_usd: String,
    refunds_nano: i64,
    refunds_usd: String,
    /// Granted credit that has expired.
    expiries_nano: i64,
    expiries_usd: String,
    charges_nano: i64,
    charges_usd: String,
    /// What was given back of charges, also of those of earlier months.
    corrections_nano: i64,
    corrections_usd: String,
    /// The part of the charges that the account could not pay.
    written_off_nano: i64,
    written_off_usd: String,
    /// The part of the corrections that the account had not paid.
    corrections_not_paid_nano: i64,
    corrections_not_paid_usd: String,
    closing_nano: i64,
    closing_usd: String,
    /// The charges by model.
    models: Vec<StatementModelLine>,
    since_opened: StatementSums,
    /// The number of lines that the journal had.
    journal_lines: u64,
}

/// The charges of a month for a model.
#[derive(Debug, ToSchema)]
#[cfg_attr(test, derive(Deserialize), serde(deny_unknown_fields))]
#[expect(dead_code, reason = "it describes the reply, which is the text that is stored")]
pub(super) struct StatementModelLine {
    /// The model; empty for charges that name none.
    model: String,
    calls: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    /// The part of the prompt that was read from a cache.
    cached_tokens: u64,
    characters: u64,
    images: u64,
    /// Seconds of video.
    seconds: u64,
    charged_nano: i64,
    charged_usd: String,
    /// The versions of the prices of these charges.
    price_versions: Vec<String>,
}

/// The same sums of all that has happened until the end of the month.
#[derive(Debug, ToSchema)]
#[cfg_attr(test, derive(Deserialize), serde(deny_unknown_fields))]
#[expect(dead_code, reason = "it describes the reply, which is the text that is stored")]
pub(super) struct StatementSums {
    payments_nano: i64,
    payments_usd: String,
    grants_nano: i64,
    grants_usd: String,
    refunds_nano: i64,
    refunds_usd: String,
    expiries_nano: i64,
    expiries_usd: String,
    charges_nano: i64,
    charges_usd: String,
    corrections_nano: i64,
    corrections_usd: String,
    written_off_nano: i64,
    written_off_usd: String,
    corrections_not_paid_nano: i64,
    corrections_not_paid_usd: String,
}

/// Tells the statement of an account for a month. The month that runs is told so far. A month that
/// is over is sealed when it is asked for first, with all months before it that were not: each
/// statement gets a number, and is told the same from then on.
#[utoipa::path(
    get,
    path = "/admin/v1/statements",
    tag = "statements",
    operation_id = "showStatement",
    params(StatementParameters),
    responses((status = 200, description = "The statement.", body = StatementReply))
)]
pub(super) async fn show_statement(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    QueryParameters(parameters): QueryParameters<StatementParameters>,
) -> Result<Response, AdminError> {
    let account = parse_account_name("account", &parameters.account)?;
    let month = StatementMonth::parse(&parameters.month).map_err(ManagementError::from)?;
    // The lines of the month are read and summed up, also if the caller goes away meanwhile.
    let permit = AdminApi::take_permit(&api.searching)?;
    let reading = async move |context: ManagementContext<'_>| {
        let _permit = permit;
        Ok(read_statement(context.store, &account, month).await?)
    };
    let view = api.change(actor, reading).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], write_view(&view)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement::{Statement, StatementView, digest_of};

    #[test]
    fn the_document_describes_each_member_of_a_statement() {
        let sums = r#""payments_nano":1,"grants_nano":0,"refunds_nano":0,"expiries_nano":0,"charges_nano":1,"corrections_nano":0,"written_off_nano":0,"corrections_not_paid_nano":0"#;
        let model = r#"{"model":"m","calls":1,"prompt_tokens":0,"completion_tokens":0,"cached_tokens":0,"characters":0,"images":0,"seconds":0,"charged_nano":1,"price_versions":["p"]}"#;
        let json = format!(
            r#"{{"account":"a","month":"2026-11","from":"","to":"","opening_nano":0,{sums},"closing_nano":0,"models":[{model}],"since_opened":{{{sums}}},"journal_lines":1}}"#
        );
        let statement = Statement::parse(&json).expect("a statement");
        let json = statement.to_json();
        let sha256 = digest_of(&json);
        let seal = crate::statement::StatementSeal { number: 1, sealed_at: 0, sha256 };
        for seal in [None, Some(seal)] {
            let (statement, json) = (statement.clone(), json.clone());
            let view = StatementView { statement, json, seal, as_of: 0 };
            let described: Result<StatementReply, _> = serde_json::from_str(&write_view(&view));
            assert!(described.is_ok(), "{described:?}");
        }
    }
}
