//! Checks that the rules are complete: a rules file that is missing, empty or cut short must not
//! take a vendor out of sale, nor all limits and prices of accounts away.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::offer::{Catalogue, RulesFileCounts};
use super::route::VendorModelNames;
use super::rules_file::RulesFile;
use crate::ledger::BookName;
use crate::toml_reader::{ConfigError, SourceLocation};

impl RulesFileCounts {
    pub(super) fn new(file: &str, rules: &RulesFile) -> RulesFileCounts {
        let (model_count, example_count) = (rules.models.len(), rules.examples.len());
        RulesFileCounts {
            file: file.to_owned(),
            vendor: rules.vendor.clone(),
            model_count,
            example_count,
        }
    }
}

impl Catalogue {
    /// Returns a fault for each vendor of the configuration that has no model in the rules. The
    /// fault names the vendor's file; if there is none, the one that `folder` should have.
    #[must_use]
    pub(crate) fn find_missing_vendors(
        &self,
        configured: &[VendorModelNames],
        folder: &str,
    ) -> Vec<ConfigError> {
        let has_models =
            |vendor: &str| self.file_counts_of(vendor).is_some_and(|counts| counts.model_count > 0);
        let missing = configured.iter().filter(|naming| !has_models(&naming.vendor));
        let fault = |naming: &VendorModelNames| {
            let vendor = &naming.vendor;
            let expected = || format!("{}/{vendor}.toml", folder.trim_end_matches('/'));
            let (file, problem) = match self.file_counts_of(vendor) {
                Some(counts) => (counts.file.clone(), "has no models"),
                None => (expected(), "does not exist"),
            };
            SourceLocation::whole_source(&file).error(format!(
                "the file {problem}, but the configuration has a section [vendor.{vendor}]"
            ))
        };
        missing.map(fault).collect()
    }

    /// Compares these rules with those before them, and returns a fault for each file that lost all
    /// its models, all its plans, or all its examples, which are at the end of a file. Such a loss
    /// is taken for a mistake. The fault names the file.
    #[must_use]
    pub(crate) fn find_losses(&self, before: &Catalogue) -> Vec<ConfigError> {
        let of_vendors = before.file_counts.iter().filter_map(|old| self.find_loss(old));
        let of_accounts = [self.find_plan_loss(before), self.find_book_loss(before)];
        of_vendors.chain(of_accounts.into_iter().flatten()).collect()
    }

    /// Returns the names of the price books that these rules lack and those before them had. Paid
    /// calls of accounts with such a book are refused.
    #[must_use]
    pub(crate) fn find_removed_books(&self, before: &Catalogue) -> Vec<BookName> {
        let names = before.books.iter().map(|book| &book.name);
        names.filter(|name| self.books.find(name).is_none()).cloned().collect()
    }

    fn find_plan_loss(&self, before: &Catalogue) -> Option<ConfigError> {
        let (file, count) = (before.plan_file.as_ref()?, before.plans.count());
        let is_lost = count > 0 && self.plans.count() == 0;
        is_lost.then(|| loss_error(file, &format!("its {count} plans would be gone")))
    }

    fn find_book_loss(&self, before: &Catalogue) -> Option<ConfigError> {
        let (file, count) = (before.book_file.as_ref()?, before.books.count());
        let is_lost = count > 0 && self.books.count() == 0;
        is_lost.then(|| loss_error(file, &format!("its {count} price books would be gone")))
    }

    fn find_loss(&self, old: &RulesFileCounts) -> Option<ConfigError> {
        let (models, examples) = self
            .file_counts_of(&old.vendor)
            .map_or((0, 0), |new| (new.model_count, new.example_count));
        let lost = if old.model_count > 0 && models == 0 {
            format!("its {} models would be gone", old.model_count)
        } else if old.example_count > 0 && examples == 0 {
            format!("its {} examples would be gone", old.example_count)
        } else {
            return None;
        };
        Some(loss_error(&old.file, &lost))
    }

    fn file_counts_of(&self, vendor: &str) -> Option<&RulesFileCounts> {
        self.file_counts.iter().find(|file| file.vendor == vendor)
    }
}

fn loss_error(file: &str, lost: &str) -> ConfigError {
    SourceLocation::whole_source(file).error(format!(
        "{lost}; the file is missing or cut short. To take them away on purpose, restart"
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const HEAD: &str = "dialect = \"chat\"\nauth = { header = \"x\" }\n\
                        estimate = { output_tokens = 1, image_tokens = 1, document_tokens = 1 }\n";
    const MODEL: &str = "[chat]\n\"a\" = { input = 1, output = 1, context = 1000 }\n";
    const EXAMPLE: &str = "[[example]]\nmodel = \"a\"\ngiven = '{\"model\":\"a\"}'\n\
                           expect = '{\"model\":\"a\"}'\n";

    fn catalogue(files: &[(&str, &str)]) -> Catalogue {
        let other = format!("vendor = \"vendor_z\"\n{HEAD}{}", MODEL.replace("\"a\"", "\"z\""));
        let mut sources = vec![("r/vendor_z.toml".to_owned(), other)];
        for (vendor, rest) in files {
            let text = format!("vendor = \"{vendor}\"\n{HEAD}{rest}");
            sources.push((format!("r/{vendor}.toml"), text));
        }
        Catalogue::parse(&sources, &[]).expect("sound rules")
    }

    fn error_messages(faults: &[ConfigError]) -> Vec<String> {
        faults.iter().map(ToString::to_string).collect()
    }

    #[rstest]
    #[case::gone(&[], "r/vendor_y.toml: its 1 models would be gone")]
    #[case::without_models(&[("vendor_y", "")], "r/vendor_y.toml: its 1 models would be gone")]
    #[case::cut_before_the_examples(
        &[("vendor_y", MODEL)],
        "r/vendor_y.toml: its 1 examples would be gone"
    )]
    fn what_is_lost_is_told_with_its_file(#[case] files: &[(&str, &str)], #[case] begins: &str) {
        let before = catalogue(&[("vendor_y", &format!("{MODEL}{EXAMPLE}"))]);
        let lost = error_messages(&catalogue(files).find_losses(&before));
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert!(lost[0].starts_with(begins), "{lost:?}");
    }

    #[test]
    fn other_models_and_fewer_examples_are_no_loss() {
        let whole = format!("{MODEL}{EXAMPLE}{EXAMPLE}");
        let before = catalogue(&[("vendor_y", &whole)]);
        let other = format!("{MODEL}{EXAMPLE}").replace("\"a\"", "\"b\"");
        assert_eq!(catalogue(&[("vendor_y", &other)]).find_losses(&before), []);
        let more =
            catalogue(&[("vendor_y", &whole), ("vendor_x", &whole.replace("\"a\"", "\"c\""))]);
        assert_eq!(more.find_losses(&before), []);
        // A file without examples cannot lose them.
        let plain = catalogue(&[("vendor_y", MODEL)]);
        assert_eq!(catalogue(&[("vendor_y", MODEL)]).find_losses(&plain), []);
    }

    #[test]
    fn plans_are_not_lost_by_a_file_that_is_gone_or_without_any() {
        let with_plans = |text: Option<&str>| {
            let rules = ("r/vendor_y.toml", format!("vendor = \"vendor_y\"\n{HEAD}{MODEL}"));
            let plans = text.map(|text| ("r/plans.toml", text.to_owned()));
            let sources = [Some(rules), plans].into_iter().flatten();
            let sources: Vec<_> = sources.map(|(file, text)| (file.to_owned(), text)).collect();
            Catalogue::parse(&sources, &[]).expect("sound rules")
        };
        let two = with_plans(Some("[plan.a]\ncalls = 1\n[plan.b]\ncalls = 1\n"));
        for after in [None, Some("# later\n")] {
            let lost = error_messages(&with_plans(after).find_losses(&two));
            assert_eq!(lost.len(), 1, "{lost:?}");
            let told = "r/plans.toml: its 2 plans would be gone";
            assert!(lost.iter().all(|loss| loss.starts_with(told)), "{lost:?}");
        }
        let one = with_plans(Some("[plan.c]\ncalls = 1\n"));
        assert_eq!(one.find_losses(&two), []);
        let none = [with_plans(None), with_plans(Some("# later\n"))];
        for before in &none {
            assert_eq!(none[0].find_losses(before), []);
            assert_eq!(one.find_losses(before), []);
        }
    }

    #[test]
    fn price_books_are_not_lost_all_at_once_and_one_that_is_gone_is_named() {
        let with_books = |text: Option<&str>| {
            let rules = ("r/vendor_y.toml", format!("vendor = \"vendor_y\"\n{HEAD}{MODEL}"));
            let books = text.map(|text| ("r/books.toml", text.to_owned()));
            let sources = [Some(rules), books].into_iter().flatten();
            let sources: Vec<_> = sources.map(|(file, text)| (file.to_owned(), text)).collect();
            Catalogue::parse(&sources, &[]).expect("sound rules")
        };
        let two = with_books(Some("[book.a]\nfactor = \"1\"\n[book.b]\nfactor = \"2\"\n"));
        for after in [None, Some("# later\n")] {
            let lost = error_messages(&with_books(after).find_losses(&two));
            assert_eq!(lost.len(), 1, "{lost:?}");
            let told = "r/books.toml: its 2 price books would be gone";
            assert!(lost.iter().all(|loss| loss.starts_with(told)), "{lost:?}");
        }
        let one = with_books(Some("[book.b]\nfactor = \"1\"\n"));
        assert_eq!(one.find_losses(&two), []);
        let removed = one.find_removed_books(&two);
        assert_eq!(removed.iter().map(BookName::as_str).collect::<Vec<_>>(), ["a"]);
        assert_eq!(two.find_removed_books(&one), []);
    }

    #[test]
    fn a_configured_vendor_without_models_is_a_fault_that_names_its_file() {
        let naming = |vendor: &str| VendorModelNames {
            vendor: vendor.to_owned(),
            ..VendorModelNames::default()
        };
        let configured = [naming("vendor_z"), naming("vendor_y"), naming("vendor_x")];
        let missing = catalogue(&[("vendor_y", "")]).find_missing_vendors(&configured, "r/");
        assert_eq!(
            error_messages(&missing),
            [
                "r/vendor_y.toml: the file has no models, but the configuration has a section \
                 [vendor.vendor_y]",
                "r/vendor_x.toml: the file does not exist, but the configuration has a section \
                 [vendor.vendor_x]",
            ]
        );
    }
}
