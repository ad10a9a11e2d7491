//! `tollgate jobs`: video jobs of an account, or of all accounts.

use serde_json::json;

use super::account_name::parse_account;
use super::output::{OutputFormat, print_line};
use crate::jobs::JobFilter;
use crate::ledger::KeyId;
use crate::management::jobs::{JobView, list_jobs, parse_job_state};
use crate::store::OpenStore;

/// The number of jobs that are read at a time.
const PAGE_SIZE: u32 = 1_000;

pub(super) async fn run(
    store: &OpenStore,
    name: Option<&str>,
    state: Option<&str>,
    out: OutputFormat,
) -> anyhow::Result<()> {
    let account = name.map(parse_account).transpose()?;
    let status = state.map(parse_job_state).transpose()?;
    let filter = JobFilter { account, status };
    let mut after = None;
    loop {
        let part = list_jobs(store, &filter, after.as_ref(), PAGE_SIZE).await?;
        for view in &part.jobs {
            print_job(view, out)?;
        }
        after = part.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

fn print_job(view: &JobView, out: OutputFormat) -> anyhow::Result<()> {
    let JobView { job, stage, held, charged, route, vendor_id, error, .. } = view;
    let state = job.status().name();
    if out.json {
        let error =
            error.as_ref().map(|(code, message)| json!({ "code": code, "message": message }));
        let shown = json!({
            "id": job.id,
            "account": job.account.as_str(),
            // Many readers of JSON lose digits of a number as long as this one.
            "key_id": job.key_id.map(|KeyId(id)| id.to_string()),
            "key_prefix": job.key_prefix,
            "model": job.model,
            "vendor": job.vendor,
            "route": route,
            "vendor_job_id": vendor_id,
            "state": state,
            "stage": stage,
            "deleted": view.deleted,
            "seconds": job.seconds,
            "resolution": job.resolution.name(),
            "size": job.size,
            "progress": job.progress,
            "held_nano": held,
            "charged_nano": charged,
            "created_at": job.created_ms,
            "ended_at": view.ended_at,
            "refused": view.refused,
            "unanswered_polls": view.troubles.unanswered,
            "not_found_polls": view.troubles.not_found,
            "copy_failures": view.troubles.uncopied,
            "error": error,
        });
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    let moment = jiff::Timestamp::from_millisecond(job.created_ms)?;
    let (account, id, model, percent) = (&job.account, &job.id, &job.model, job.progress);
    let money = match charged {
        Some(amount) => format!("charged {amount} USD"),
        None => format!("held {held} USD"),
    };
    let route = route.as_deref().unwrap_or("-");
    let why = error.as_ref().map_or(String::new(), |(code, message)| format!("{code}: {message}"));
    let line =
        format!("{moment}  {account}  {id}  {model}  {state}  {percent}%  {route}  {money}  {why}");
    print_line(format_args!("{}", line.trim_end()))?;
    Ok(())
}
