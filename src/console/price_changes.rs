//! What has changed between two versions of the price list.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use serde_json::Value;

use crate::catalogue::Catalogue;

/// A price that is not as it was before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PriceChange {
    pub(super) model: String,
    /// What the price is of, such as `input`.
    pub(super) name: String,
    /// In USD, as the list of models has it; `None` if there was none.
    pub(super) before: Option<String>,
    /// `None` if there is none any more.
    pub(super) after: Option<String>,
}

/// Returns the changes of the list prices, in order of the models. `now` is in unix seconds.
pub(super) fn compare_prices(before: &Catalogue, after: &Catalogue, now: i64) -> Vec<PriceChange> {
    let [old, new] = [before, after].map(|catalogue| prices_of(catalogue, now));
    let places = old.keys().chain(new.keys()).collect::<std::collections::BTreeSet<_>>();
    let changes = places.into_iter().filter(|place| old.get(*place) != new.get(*place));
    changes
        .map(|place| PriceChange {
            model: place.0.clone(),
            name: place.1.clone(),
            before: old.get(place).cloned(),
            after: new.get(place).cloned(),
        })
        .collect()
}

/// Returns the prices by their models and names.
fn prices_of(catalogue: &Catalogue, now: i64) -> BTreeMap<(String, String), String> {
    let mut prices = BTreeMap::new();
    for (model, found) in catalogue.names() {
        let listing = found.listing(model, now, None);
        for (name, price) in listing["pricing"].as_object().into_iter().flatten() {
            let price = match price {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            prices.insert((model.to_owned(), name.clone()), price);
        }
    }
    prices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::VendorModelNames;

    fn catalogue(models: &str) -> Catalogue {
        let text = format!(
            "vendor = \"vendor_y\"\ndialect = \"chat\"\nauth = {{ header = \"x\" }}\n\
             estimate = {{ output_tokens = 1, image_tokens = 1, document_tokens = 1 }}\n\
             [chat]\n{models}"
        );
        let vendor = VendorModelNames { vendor: "vendor_y".to_owned(), ..Default::default() };
        Catalogue::parse(&[("vendor_y.toml".to_owned(), text)], &[vendor]).expect("sound rules")
    }

    #[test]
    fn a_price_that_rose_a_new_model_and_one_that_is_gone_are_told() {
        let before = catalogue(
            "\"a\" = { input = 1, output = 2, context = 9 }\n\
             \"b\" = { input = 1, output = 1, context = 9 }\n",
        );
        let after = catalogue(
            "\"a\" = { input = 1, output = 3, context = 9 }\n\
             \"c\" = { input = 1, output = 1, context = 9 }\n",
        );
        let changes = compare_prices(&before, &after, 0);
        let of = |model: &str| changes.iter().filter(|c| c.model == model).collect::<Vec<_>>();
        let rose = |change: &&PriceChange| change.before.is_some() && change.after.is_some();
        assert!(!of("a").is_empty() && of("a").iter().all(rose), "{changes:?}");
        assert!(!of("b").is_empty() && of("b").iter().all(|change| change.after.is_none()));
        assert!(!of("c").is_empty() && of("c").iter().all(|change| change.before.is_none()));
        assert!(compare_prices(&after, &after, 0).is_empty());
    }
}
