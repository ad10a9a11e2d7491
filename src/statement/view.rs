//! A statement as it is shown, with its seal.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::document::{Statement, StatementModel};
use crate::usage::moment_text;

/// The seal of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatementSeal {
    /// The number of the statement in the installation.
    pub(crate) number: u64,
    /// When it was sealed, in unix ms.
    pub(crate) sealed_at: i64,
    /// The SHA-256 of its JSON, in hexadecimal digits.
    pub(crate) sha256: String,
}

/// A statement as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatementView {
    pub(crate) statement: Statement,
    /// Its JSON, as it is stored.
    pub(crate) json: String,
    /// Its seal; `None` while the month runs.
    pub(crate) seal: Option<StatementSeal>,
    /// Until when it tells what happened, in unix ms: a month that is over, until its end.
    pub(crate) as_of: i64,
}

/// A line of a statement as people read it.
#[derive(Debug)]
pub(crate) struct StatementItem<'a> {
    /// What it is, as in `payments`.
    pub(crate) name: &'static str,
    /// The model, if charges of one are told.
    pub(crate) model: Option<&'a StatementModel>,
    /// The amount in nano-USD; what the account loses is negative.
    pub(crate) nano: i64,
}

impl StatementView {
    /// Returns the items in their order: all between the first and the last one add up to the
    /// difference of these two.
    pub(crate) fn items(&self) -> Vec<StatementItem<'_>> {
        let Statement { opening, month_totals: sums, closing, models, .. } = &self.statement;
        let item = |name, nano| StatementItem { name, model: None, nano };
        let less = |name, nano: i64| item(name, nano.saturating_neg());
        let mut items = vec![
            item("opening", *opening),
            item("payments", sums.payments.nano()),
            item("grants", sums.grants.nano()),
            less("refunds", sums.refunds.nano()),
            less("expiries", sums.expiries.nano()),
        ];
        items.extend(models.iter().map(|model| {
            let nano = model.charged.nano().saturating_neg();
            StatementItem { name: "charges", model: Some(model), nano }
        }));
        let not_paid = sums.corrections_not_paid.nano();
        items.extend([
            item("corrections", sums.corrections.nano()),
            item("written off", sums.written_off.nano().saturating_sub(not_paid)),
            item("closing", *closing),
        ]);
        items
    }

    /// Returns what a reader has to know first: that the statement is final, or that it is not.
    pub(crate) fn state(&self) -> String {
        let moment = |at| moment_text(at).unwrap_or_default();
        match &self.seal {
            Some(seal) => format!("sealed {}", moment(seal.sealed_at)),
            None => format!("so far, at {}; not sealed", moment(self.as_of)),
        }
    }
}

impl StatementItem<'_> {
    /// Returns the name of the model; `-` for charges that name none.
    pub(crate) fn model_name(&self) -> &str {
        match self.model {
            Some(model) if model.model.is_empty() => "-",
            Some(model) => &model.model,
            None => "",
        }
    }

    /// Returns what was used of a model, as in `3 calls, 3000+300 tokens`.
    pub(crate) fn usage(&self) -> String {
        let Some(model) = self.model else { return String::new() };
        let mut parts = vec![format!("{} calls", model.calls)];
        if model.prompt_tokens > 0 || model.completion_tokens > 0 {
            parts.push(format!("{}+{} tokens", model.prompt_tokens, model.completion_tokens));
        }
        for (count, unit) in [
            (model.characters, "characters"),
            (model.images, "images"),
            (model.seconds, "seconds of video"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {unit}"));
            }
        }
        parts.join(", ")
    }

    /// Returns the versions of the prices, with spaces between them.
    pub(crate) fn price_versions(&self) -> String {
        self.model.map(|model| model.price_versions.join(" ")).unwrap_or_default()
    }
}
