//! A row of FOCUS 1.2 as CSV.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::csv::text_field;
use crate::usage::{PeriodKind, RollupSums, date_text};

/// The columns, those of tollgate's own last.
const COLUMNS: [&str; 39] = [
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "BilledCost",
    "ContractedCost",
    "EffectiveCost",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "PricingCategory",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ServiceCategory",
    "ServiceSubcategory",
    "ServiceName",
    "ProviderName",
    "PublisherName",
    "InvoiceIssuerName",
    "InvoiceId",
    "SkuId",
    "SkuPriceId",
    "SkuMeter",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
    "x_Calls",
    "x_PromptTokens",
    "x_CompletionTokens",
    "x_CachedTokens",
];

/// What a row is, and how much of it there was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum FocusCategory {
    #[default]
    Adjustment,
    Credit,
    /// Usage of so many units, with the sums of the row.
    Usage {
        quantity: u64,
        unit: &'static str,
        sums: Box<RollupSums>,
    },
}

/// A row. Dates are of UTC; the second one is the day after the last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FocusRecord {
    pub(crate) account: String,
    /// The name of who sells.
    pub(crate) issuer: String,
    /// The statement.
    pub(crate) invoice: String,
    pub(crate) month: (String, String),
    pub(crate) days: (String, String),
    pub(crate) key_id: Option<u64>,
    pub(crate) description: String,
    /// The endpoint's short name; empty if there is none.
    pub(crate) service: String,
    /// The model and the version of its price.
    pub(crate) sku: Option<(String, String)>,
    pub(super) category: FocusCategory,
    /// What is billed, what the account's prices say, and what the list prices say, in nano-USD.
    pub(super) costs: [i64; 3],
}

impl FocusRecord {
    /// Returns the record for the day that began at `start` (unix ms).
    pub(super) fn of_day(self, start: i64) -> FocusRecord {
        let [first, next] =
            [start, PeriodKind::Day.end_of(start)].map(|at| date_text(at).unwrap_or_default());
        FocusRecord { days: (first, next), ..self }
    }

    pub(super) fn credit(self, nano: i64) -> FocusRecord {
        FocusRecord { category: FocusCategory::Credit, costs: [nano; 3], ..self }
    }

    pub(super) fn adjustment(self, costs: [i64; 3]) -> FocusRecord {
        FocusRecord { category: FocusCategory::Adjustment, costs, ..self }
    }

    /// Returns the record of calls. What has no units is counted in calls.
    pub(super) fn usage(self, sums: &RollupSums, costs: [i64; 3]) -> FocusRecord {
        let tokens = sums.prompt_tokens.saturating_add(sums.completion_tokens);
        let units = [
            (tokens, "Tokens"),
            (sums.characters, "Characters"),
            (sums.images, "Images"),
            (sums.seconds, "Seconds"),
            (sums.calls, "Calls"),
        ];
        let (quantity, unit) =
            units.into_iter().find(|(count, _)| *count > 0).unwrap_or((0, "Calls"));
        let category = FocusCategory::Usage { quantity, unit, sums: Box::new(*sums) };
        FocusRecord { category, costs, ..self }
    }

    /// Returns the first line of the file.
    pub(crate) fn header() -> String {
        COLUMNS.join(",") + "\n"
    }

    /// Writes the row.
    pub(crate) fn to_csv(&self) -> String {
        let field = |column: &str| {
            let value = self.field(column);
            // An amount below 0 is no formula.
            if column.ends_with("Cost") { value } else { text_field(&value) }
        };
        COLUMNS.map(field).join(",") + "\n"
    }

    fn field(&self, column: &str) -> String {
        let [billed, contracted, list] = self.costs;
        match column {
            "BillingAccountId" | "BillingAccountName" => self.account.clone(),
            "BillingAccountType" => "Account".to_owned(),
            "BillingCurrency" => "USD".to_owned(),
            "BillingPeriodStart" => midnight(&self.month.0),
            "BillingPeriodEnd" => midnight(&self.month.1),
            "ChargePeriodStart" => midnight(&self.days.0),
            "ChargePeriodEnd" => midnight(&self.days.1),
            "ChargeDescription" => self.description.clone(),
            "BilledCost" | "EffectiveCost" => amount(billed),
            "ContractedCost" => amount(contracted),
            "ListCost" => amount(list),
            "ServiceCategory" => "AI and Machine Learning".to_owned(),
            "ServiceSubcategory" => "Generative AI".to_owned(),
            "ServiceName" if self.service.is_empty() => "credit".to_owned(),
            "ServiceName" => self.service.clone(),
            "ProviderName" | "PublisherName" | "InvoiceIssuerName" => self.issuer.clone(),
            "InvoiceId" => self.invoice.clone(),
            "SubAccountId" | "SubAccountName" => {
                self.key_id.map(|id| format!("key-{id}")).unwrap_or_default()
            }
            "SubAccountType" if self.key_id.is_some() => "API key".to_owned(),
            "Tags" => "{}".to_owned(),
            _ => self.field_of_category(column),
        }
    }

    fn field_of_category(&self, column: &str) -> String {
        let (name, frequency) = match &self.category {
            FocusCategory::Adjustment => ("Adjustment", "One-Time"),
            FocusCategory::Credit => ("Credit", "One-Time"),
            FocusCategory::Usage { .. } => ("Usage", "Usage-Based"),
        };
        match (column, &self.category, &self.sku) {
            ("ChargeCategory", ..) => name.to_owned(),
            ("ChargeFrequency", ..) => frequency.to_owned(),
            ("SkuId", _, Some((model, _))) => model.clone(),
            ("SkuPriceId", _, Some((model, version))) => format!("{model}@{version}"),
            (_, FocusCategory::Usage { quantity, unit, sums }, _) => match column {
                // As a decimal number, which a reader of CSV does not take for an integer.
                "PricingQuantity" | "ConsumedQuantity" => format!("{quantity}.0"),
                "PricingUnit" | "ConsumedUnit" | "SkuMeter" => (*unit).to_owned(),
                "PricingCategory" => "Standard".to_owned(),
                "x_Calls" => sums.calls.to_string(),
                "x_PromptTokens" => sums.prompt_tokens.to_string(),
                "x_CompletionTokens" => sums.completion_tokens.to_string(),
                "x_CachedTokens" => sums.cached_tokens.to_string(),
                _ => String::new(),
            },
            _ => String::new(),
        }
    }
}

fn midnight(date: &str) -> String {
    format!("{date}T00:00:00Z")
}

/// Writes an amount in USD with all nine decimals.
fn amount(nano: i64) -> String {
    let (sign, size) = (if nano < 0 { "-" } else { "" }, nano.unsigned_abs());
    format!("{sign}{}.{:09}", size / 1_000_000_000, size % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_all_their_decimals() {
        for (nano, text) in [
            (0, "0.000000000"),
            (5_000_000_000, "5.000000000"),
            (-1, "-0.000000001"),
            (-12_345_678_901, "-12.345678901"),
            (i64::MIN, "-9223372036.854775808"),
        ] {
            assert_eq!(amount(nano), text);
        }
    }

    #[test]
    fn each_column_has_its_value() {
        let sums = RollupSums {
            calls: 2,
            prompt_tokens: 30,
            completion_tokens: 4,
            cached_tokens: 5,
            ..RollupSums::default()
        };
        let record = FocusRecord {
            account: "acme".to_owned(),
            issuer: "Example, Inc".to_owned(),
            invoice: "statement-7".to_owned(),
            month: ("2026-11-01".to_owned(), "2026-12-01".to_owned()),
            key_id: Some(3),
            description: "chat calls of lmb-5".to_owned(),
            service: "chat".to_owned(),
            sku: Some(("lmb-5".to_owned(), "v1".to_owned())),
            ..FocusRecord::default()
        };
        let record = record.of_day(1_795_737_600_000).usage(&sums, [1_000_000_000, 5, 7]);
        let expected = "acme,acme,Account,USD,2026-11-01T00:00:00Z,2026-12-01T00:00:00Z,\
            2026-11-27T00:00:00Z,2026-11-28T00:00:00Z,Usage,,chat calls of lmb-5,Usage-Based,\
            1.000000000,0.000000005,1.000000000,0.000000007,34.0,Tokens,Standard,34.0,Tokens,\
            AI and Machine Learning,Generative AI,chat,\"Example, Inc\",\"Example, Inc\",\
            \"Example, Inc\",statement-7,lmb-5,lmb-5@v1,Tokens,key-3,key-3,API key,{},2,30,4,5\n";
        assert_eq!(record.to_csv(), expected);
        assert_eq!(FocusRecord::header().split(',').count(), expected.split(',').count() - 3);
        let back = FocusRecord { key_id: None, sku: None, ..record }.adjustment([-1, -2, -2]);
        let fields: Vec<String> = COLUMNS.map(|column| back.field(column)).to_vec();
        assert_eq!(fields[8..10], ["Adjustment", ""]);
        let costs = ["-0.000000001", "-0.000000002", "-0.000000001", "-0.000000002"];
        assert_eq!(fields[12..16], costs);
        assert!(back.to_csv().contains(&costs.join(",")));
        assert!(fields[16..21].iter().all(String::is_empty), "{fields:?}");
    }
}
