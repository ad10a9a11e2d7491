//! Makes the statement of a month out of the books and the statements before it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::books::{ModelSums, StatementBooks, add_sums, models_since, told_sums};
use super::document::{Statement, StatementModel};
use super::lines::{LineRange, StatementLines};
use super::month::StatementMonth;
use super::totals::{StatementFault, StatementTotals};
use crate::ledger::AccountName;
use crate::usage::{ROLLUP_FIELDS, RollupSums, date_text};

/// A statement whose lines of the journal are still to be read.
#[derive(Debug)]
pub(crate) struct StatementDraft {
    account: AccountName,
    month: StatementMonth,
    opening: i64,
    month_totals: StatementTotals,
    all_totals: StatementTotals,
    /// The sums of the month by model, as the roll-ups have them less the statements before. There
    /// are none if a line came after a statement and is dated before the first one.
    models: Result<ModelSums, StatementFault>,
    /// The sums by model of all lines, as the roll-ups have them.
    all_models: ModelSums,
    range: LineRange,
}

impl StatementDraft {
    /// Begins the statement of a month. `sealed` are those of the account, the first month first.
    /// Of a month that runs (`is_over` is false) all that has happened so far is in it.
    ///
    /// A month after the last sealed one has whatever the sealed ones do not tell. If another month
    /// is between them, time decides: that one will have the rest.
    pub(crate) fn new(
        account: &AccountName,
        month: StatementMonth,
        is_over: bool,
        books: &StatementBooks,
        sealed: &[Statement],
    ) -> Result<StatementDraft, StatementFault> {
        let (start, end) = (month.start(), if is_over { month.end() } else { i64::MAX });
        let last = sealed.last();
        let follows =
            |last: &&Statement| last.statement_month().is_some_and(|before| before.next() == month);
        let last = last.filter(follows);
        let all_totals = books.totals_before(end)?;
        let (told, told_models, opening) = if let Some(last) = last {
            (last.all_totals, told_models(books, sealed), last.closing)
        } else {
            let told = books.totals_before(start)?;
            (told, books.models_before(start), told.closing(0)?)
        };
        let month_totals = all_totals.since(&told)?;
        let of_month = books.models_before(end)?;
        let models = told_models.and_then(|told| models_since(&of_month, &told));
        let all_models = books.models_before(i64::MAX)?;
        let sealed_lines = last.map(|last| last.journal_lines);
        let range = LineRange { start, end, sealed_lines, lines: books.lines };
        Ok(StatementDraft {
            account: account.clone(),
            month,
            opening,
            month_totals,
            all_totals,
            models,
            all_models,
            range,
        })
    }

    /// Returns which lines of the journal the statement needs.
    pub(crate) fn range(&self) -> LineRange {
        self.range
    }

    /// Ends the statement with its lines of the journal. They must have the sums of the roll-ups.
    pub(crate) fn finish(&self, lines: &StatementLines) -> Result<Statement, StatementFault> {
        let models = self.models.as_ref().map_err(Clone::clone)?;
        compare(models, &lines.models)?;
        self.write(models, lines)
    }

    /// Ends the statement with all lines of the journal, which must have the sums of the roll-ups.
    /// The lines alone decide what is of this month.
    pub(crate) fn finish_with_all(
        &self,
        lines: &StatementLines,
    ) -> Result<Statement, StatementFault> {
        compare(&self.all_models, &lines.all_models)?;
        let told = lines.models.iter().map(|(model, sums)| (model.clone(), told_sums(sums)));
        let models: ModelSums = told.filter(|(_, sums)| *sums != RollupSums::default()).collect();
        self.write(&models, lines)
    }

    fn write(
        &self,
        models: &ModelSums,
        lines: &StatementLines,
    ) -> Result<Statement, StatementFault> {
        self.compare_totals(lines)?;
        let closing = self.month_totals.closing(self.opening)?;
        let in_all = self.all_totals.closing(0)?;
        if in_all != closing {
            return Err(StatementFault::Differs(format!(
                "closing: {closing} nano-USD by the month, and {in_all} by all months"
            )));
        }
        let of_model = |(model, sums): (&String, &RollupSums)| {
            let versions = lines.price_versions.get(model);
            StatementModel {
                model: model.clone(),
                calls: sums.calls,
                prompt_tokens: sums.prompt_tokens,
                completion_tokens: sums.completion_tokens,
                cached_tokens: sums.cached_tokens,
                characters: sums.characters,
                images: sums.images,
                seconds: sums.seconds,
                charged: sums.charged,
                price_versions: versions.into_iter().flatten().cloned().collect(),
            }
        };
        let date = |at| date_text(at).ok_or(StatementFault::Overflow);
        Ok(Statement {
            account: self.account.as_str().to_owned(),
            month: self.month.to_string(),
            from: date(self.month.start())?,
            to: date(self.month.end())?,
            opening: self.opening,
            month_totals: self.month_totals,
            closing,
            models: models.iter().map(of_model).collect(),
            all_totals: self.all_totals,
            journal_lines: self.range.lines,
        })
    }

    /// Compares what is not told of each model apart, such as what was written off.
    fn compare_totals(&self, lines: &StatementLines) -> Result<(), StatementFault> {
        let StatementTotals { payments, grants, refunds, .. } = self.month_totals;
        let mut journal = StatementTotals { payments, grants, refunds, ..Default::default() };
        for sums in lines.models.values() {
            journal.add_usage(sums)?;
        }
        let sums = self.month_totals.values().into_iter().zip(journal.values());
        for (name, (rolled_up, journal)) in StatementTotals::NAMES.into_iter().zip(sums) {
            if rolled_up != journal {
                let (rolled_up, journal) = (rolled_up.nano(), journal.nano());
                return Err(StatementFault::Differs(format!(
                    "{name}: the roll-ups say {rolled_up}, the journal {journal} nano-USD"
                )));
            }
        }
        Ok(())
    }
}

/// Returns the sums by model that the sealed statements tell, with those before the first of them.
fn told_models(books: &StatementBooks, sealed: &[Statement]) -> Result<ModelSums, StatementFault> {
    let first = sealed.first().and_then(Statement::statement_month);
    let start = first.map_or(i64::MIN, StatementMonth::start);
    let mut told = books.models_before(start)?;
    for model in sealed.iter().flat_map(|statement| &statement.models) {
        let sums = RollupSums {
            calls: model.calls,
            prompt_tokens: model.prompt_tokens,
            completion_tokens: model.completion_tokens,
            cached_tokens: model.cached_tokens,
            characters: model.characters,
            images: model.images,
            seconds: model.seconds,
            charged: model.charged,
            ..RollupSums::default()
        };
        add_sums(&mut told, &model.model, &sums)?;
    }
    Ok(told)
}

/// Compares the sums of roll-ups with those of lines.
fn compare(rolled_up: &ModelSums, journal: &ModelSums) -> Result<(), StatementFault> {
    let told = |models: &ModelSums, model: &String| {
        models.get(model).map(told_sums).unwrap_or_default().to_values()
    };
    for model in rolled_up.keys().chain(journal.keys()) {
        let (of_rows, of_lines) = (told(rolled_up, model)?, told(journal, model)?);
        let fields = ROLLUP_FIELDS.into_iter().zip(of_rows.into_iter().zip(of_lines));
        for (field, (rolled_up, journal)) in fields {
            if rolled_up != journal {
                return Err(StatementFault::Differs(format!(
                    "{field} of model '{}': the roll-ups say {rolled_up}, the journal {journal}",
                    model.escape_debug()
                )));
            }
        }
    }
    Ok(())
}
