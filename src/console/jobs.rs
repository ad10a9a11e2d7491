//! The page of the video jobs.

use axum::extract::State;
use serde::Deserialize;

use super::error::PageError;
use super::forms::PageQuery;
use super::page::Page;
use super::state::Console;
use super::views::jobs as view;
use crate::jobs::{JobCursor, JobFilter};
use crate::management::error::parse_account;
use crate::management::jobs::{list_jobs, parse_job_state};

/// The number of jobs of a page.
const PAGE_SIZE: u32 = 50;

/// What is looked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobSearch {
    pub(super) account: Option<String>,
    pub(super) state: Option<String>,
    after: Option<String>,
}

/// Shows the jobs, by account.
pub(super) async fn list(
    State(console): State<Console>,
    PageQuery(search): PageQuery<JobSearch>,
) -> Result<Page, PageError> {
    let account = search.account.as_deref().map(parse_account).transpose()?;
    let state = search.state.as_deref().map(parse_job_state).transpose()?;
    let filter = JobFilter { account, status: state };
    let unknown = |_| PageError::invalid("There is no such place in the list of jobs.");
    let parse = |text: &str| text.parse::<JobCursor>().map_err(unknown);
    let after = search.after.as_deref().map(parse);
    let part =
        list_jobs(&console.api.store, &filter, after.transpose()?.as_ref(), PAGE_SIZE).await?;
    let content = view::draw(&search, &part.jobs, part.next.map(|next| next.to_string()));
    Ok(Page::new("Video jobs", "/jobs", content))
}
