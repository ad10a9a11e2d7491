//! The text of an error with its causes.

use std::error::Error;

/// Returns the error's text and those of its causes, from the outermost on, with `: ` between.
#[must_use]
pub(crate) fn error_chain(why: &dyn Error) -> String {
    let mut text = why.to_string();
    let mut cause = why.source();
    while let Some(why) = cause {
        text.push_str(": ");
        text.push_str(&why.to_string());
        cause = why.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("no answer")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn an_error_is_told_with_its_causes() {
        let inner = "x".parse::<u8>().expect_err("no number");
        assert_eq!(error_chain(&inner), "invalid digit found in string");
        assert_eq!(error_chain(&Outer(inner)), "no answer: invalid digit found in string");
    }
}
