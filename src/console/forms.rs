//! The fields of a form, and those of a query. What is not known is refused, and named.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::error::PageError;

/// The field of every form that has the token of the session.
pub(super) const TOKEN_FIELD: &str = "form_token";
/// The field of a form that its sender was asked about once more.
pub(super) const CONFIRMED_FIELD: &str = "confirmed";

/// The fields that a form has sent, but for its token.
#[derive(Debug, Clone, Default)]
pub(super) struct SentFields(Vec<(String, String)>);

impl SentFields {
    /// Reads the body of a form.
    pub(super) fn parse(body: &[u8]) -> Result<SentFields, PageError> {
        let fields = serde_urlencoded::from_bytes(body);
        let broken = |_| PageError::invalid("The form cannot be read: send it once more.");
        fields.map(SentFields).map_err(broken)
    }

    /// Makes fields of their names and values.
    pub(super) fn of<const N: usize>(fields: [(&str, String); N]) -> SentFields {
        SentFields(fields.map(|(name, value)| (name.to_owned(), value)).to_vec())
    }

    /// Takes a field out of the fields.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1)
    }

    /// Returns the value of a field; empty if it was not sent.
    pub(super) fn value_of(&self, name: &str) -> &str {
        let field = self.0.iter().find(|(known, _)| known == name);
        field.map(|(_, value)| value.as_str()).unwrap_or_default()
    }
}

/// The fields of a form. A field that was left empty is missing.
pub(super) struct FormBody<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for FormBody<T> {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<FormBody<T>, PageError> {
        let fields = parts.extensions.remove::<SentFields>().unwrap_or_default();
        read_fields(fields.0).map(FormBody)
    }
}

/// The parameters of a query. One that was left empty is missing.
pub(super) struct PageQuery<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for PageQuery<T> {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<PageQuery<T>, PageError> {
        let query = parts.uri.query().unwrap_or_default();
        let fields = serde_urlencoded::from_str(query);
        let fields = fields.map_err(|why| PageError::invalid(format!("The address: {why}.")))?;
        read_fields(fields).map(PageQuery)
    }
}

fn read_fields<T: DeserializeOwned>(mut fields: Vec<(String, String)>) -> Result<T, PageError> {
    for (_, value) in &mut fields {
        let trimmed = value.trim();
        if trimmed.len() < value.len() {
            *value = trimmed.to_owned();
        }
    }
    fields.retain(|(_, value)| !value.is_empty());
    let text = serde_urlencoded::to_string(&fields);
    let text = text.map_err(|why| PageError::invalid(why.to_string()))?;
    serde_urlencoded::from_str(&text).map_err(|why| PageError::invalid(format!("{why}.")))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Payment {
        amount: String,
        note: Option<String>,
    }

    fn read(body: &str) -> Result<Payment, PageError> {
        let mut fields = SentFields::parse(body.as_bytes())?;
        assert_eq!(fields.take(TOKEN_FIELD).as_deref(), Some("5e"));
        read_fields(fields.0)
    }

    #[test]
    fn a_field_that_was_left_empty_is_missing() {
        let payment = read("form_token=5e&amount=+5.00+&note=").expect("a payment");
        assert_eq!(payment, Payment { amount: "5.00".to_owned(), note: None });
        let why = read("form_token=5e&note=x").expect_err("no amount");
        assert!(why.message.contains("missing field `amount`"), "{why:?}");
        let why = read("form_token=5e&amount=5&admin=1").expect_err("another field");
        assert!(why.message.contains("unknown field `admin`"), "{why:?}");
    }
}
