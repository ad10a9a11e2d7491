//! `tollgate check --books`: proves that the roll-ups are the sums of the journal, and the journal
//! those of the balances.

use anyhow::bail;
use serde_json::json;

use super::output::{OutputFormat, print_line};
use crate::management::books_proof::{ProvedBooks, prove_books};
use crate::store::OpenStore;

pub(super) async fn run(store: &OpenStore, out: OutputFormat) -> anyhow::Result<()> {
    let (mut accounts, mut lines, mut behind) = (0_u64, 0_u64, 0_u64);
    for account in store.ledger.list_accounts().await? {
        let Some(proved) = prove_books(store, &account).await? else { continue };
        let ProvedBooks { lines: of_account, folded, difference } = proved;
        if let Some(difference) = difference {
            bail!("the books of account '{account}' do not add up: {difference}");
        }
        accounts = accounts.saturating_add(1);
        lines = lines.saturating_add(of_account);
        behind = behind.saturating_add(of_account.saturating_sub(folded));
    }
    if out.json {
        let shown = json!({ "accounts": accounts, "lines": lines, "lines_not_folded": behind });
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    print_line(format_args!(
        "books     {accounts} accounts, {lines} lines: roll-ups, journal and balances add up"
    ))?;
    if behind > 0 {
        print_line(format_args!("not yet   {behind} lines are in no roll-up yet"))?;
    }
    Ok(())
}
