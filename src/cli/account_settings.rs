//! The settings of accounts on the command line: how they are given, changed and shown.

use clap::Args;

use crate::ledger::AccountSettings;
use crate::management::accounts::SettingsPatch;
use crate::management::error::{ManagementError, parse_book_name, parse_plan_name};
use crate::management::field_patch::FieldPatch;

/// The changes of an account's settings that a command is asked to make.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command")]
pub(super) struct SettingChanges {
    /// Limit the account by this plan of the rules.
    #[arg(long)]
    plan: Option<String>,
    /// Limit the account by the default plan.
    #[arg(long, conflicts_with = "plan")]
    no_plan: bool,
    /// Charge the account by this price book of the rules.
    #[arg(long)]
    book: Option<String>,
    /// Charge the account at list prices.
    #[arg(long, conflicts_with = "book")]
    no_book: bool,
    /// Refuse all calls of the account, and end its streams.
    #[arg(long)]
    suspend: bool,
    /// Accept calls of a suspended account again.
    #[arg(long, conflicts_with = "suspend")]
    resume: bool,
}

impl SettingChanges {
    /// Whether nothing is to be changed.
    pub(super) fn is_empty(&self) -> bool {
        let is_plan_kept = self.plan.is_none() && !self.no_plan;
        let is_book_kept = self.book.is_none() && !self.no_book;
        is_plan_kept && is_book_kept && !self.suspend && !self.resume
    }

    /// The name of the price book that is given.
    pub(super) fn book(&self) -> Option<&str> {
        self.book.as_deref()
    }

    /// The name of the plan that is given.
    pub(super) fn plan(&self) -> Option<&str> {
        self.plan.as_deref()
    }

    /// Parses what was given, which may be nothing.
    pub(super) fn parse(&self) -> Result<SettingsPatch, ManagementError> {
        let plan = self.plan.as_deref().map(parse_plan_name).transpose()?;
        let book = self.book.as_deref().map(parse_book_name).transpose()?;
        let suspended = (self.suspend || self.resume).then_some(self.suspend);
        let plan =
            if self.no_plan { FieldPatch::Set(None) } else { FieldPatch::set_if_given(plan) };
        let book =
            if self.no_book { FieldPatch::Set(None) } else { FieldPatch::set_if_given(book) };
        Ok(SettingsPatch { plan, book, suspended })
    }
}

/// Returns what settings have to say, each after what it is about.
pub(super) fn setting_lines(settings: &AccountSettings) -> Vec<(&'static str, &str)> {
    let mut lines = Vec::new();
    lines.extend(settings.plan.iter().map(|plan| ("plan", plan.as_str())));
    lines.extend(settings.book.iter().map(|book| ("price book", book.as_str())));
    lines.extend(settings.suspended.then_some(("state", "suspended")));
    lines
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        changes: SettingChanges,
    }

    fn parsed(words: &[&str]) -> Result<SettingChanges, clap::Error> {
        let words = ["set"].iter().chain(words);
        Line::try_parse_from(words).map(|line| line.changes)
    }

    fn changed(settings: &AccountSettings, words: &[&str]) -> AccountSettings {
        let changes = parsed(words).expect("known options").parse().expect("sound changes");
        changes.apply(settings)
    }

    #[test]
    fn settings_are_changed_by_what_is_named_and_left_otherwise() {
        let free = changed(&AccountSettings::default(), &["--plan", "free"]);
        assert_eq!(setting_lines(&free), [("plan", "free")]);
        let suspended = changed(&free, &["--suspend"]);
        assert_eq!(setting_lines(&suspended), [("plan", "free"), ("state", "suspended")]);
        let without_plan = changed(&suspended, &["--no-plan"]);
        assert_eq!(setting_lines(&without_plan), [("state", "suspended")]);
        assert_eq!(changed(&without_plan, &["--resume"]), AccountSettings::default());
        assert_eq!(changed(&suspended, &["--resume"]), free);
        let gold = changed(&free, &["--book", "gold"]);
        assert_eq!(setting_lines(&gold), [("plan", "free"), ("price book", "gold")]);
        assert_eq!(changed(&gold, &["--no-book"]), free);
        assert!(parsed(&[]).expect("nothing").is_empty());
        for words in [
            &["--plan=free"][..],
            &["--no-plan"],
            &["--suspend"],
            &["--resume"],
            &["--book=a"],
            &["--no-book"],
        ] {
            assert!(!parsed(words).expect("known options").is_empty(), "{words:?}");
        }
    }

    #[test]
    fn what_contradicts_itself_or_is_no_plan_is_refused() {
        let pairs =
            [["--suspend", "--resume"], ["--plan=free", "--no-plan"], ["--book=gold", "--no-book"]];
        for words in pairs {
            assert!(parsed(&words).is_err(), "{words:?}");
        }
        let changes = parsed(&["--plan", "a b"]).expect("known options");
        let why = changes.parse().expect_err("no plan").to_string();
        assert!(why.contains("'a b' is no name of a plan"), "{why}");
        let changes = parsed(&["--book", "a b"]).expect("known options");
        let why = changes.parse().expect_err("no book").to_string();
        assert!(why.contains("'a b' is no name of a price book"), "{why}");
    }
}
