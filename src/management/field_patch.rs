//! A change of one field that may be empty.

use serde::{Deserialize, Deserializer};

/// A change of one field that may be empty: to leave it, to set it, or to take it away.
///
/// In JSON, a member that is missing leaves the field, and null takes its value away. The member
/// needs `#[serde(default)]`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) enum FieldPatch<T> {
    /// The field stays as it is.
    #[default]
    Keep,
    /// The field is set, or has no value any more.
    Set(Option<T>),
}

impl<T> FieldPatch<T> {
    /// Returns the change that sets a value, if there is one, and leaves the field otherwise.
    pub(crate) fn set_if_given(value: Option<T>) -> FieldPatch<T> {
        value.map_or(FieldPatch::Keep, |value| FieldPatch::Set(Some(value)))
    }

    /// Returns the change with its value parsed.
    pub(crate) fn try_map<U, E>(
        self,
        parse: impl FnOnce(T) -> Result<U, E>,
    ) -> Result<FieldPatch<U>, E> {
        match self {
            FieldPatch::Keep => Ok(FieldPatch::Keep),
            FieldPatch::Set(value) => Ok(FieldPatch::Set(value.map(parse).transpose()?)),
        }
    }

    /// Returns the new value of a list, where none is the same as an empty one; `None` if it stays.
    pub(crate) fn into_list(self) -> Option<T>
    where
        T: Default,
    {
        match self {
            FieldPatch::Keep => None,
            FieldPatch::Set(list) => Some(list.unwrap_or_default()),
        }
    }
}

impl<T: Clone> FieldPatch<T> {
    /// Returns the change that leads from one value to another one.
    pub(crate) fn between(from: Option<&T>, to: Option<&T>) -> FieldPatch<T>
    where
        T: PartialEq,
    {
        if from == to { FieldPatch::Keep } else { FieldPatch::Set(to.cloned()) }
    }

    /// Changes a field.
    pub(crate) fn apply_to(&self, field: &mut Option<T>) {
        if let FieldPatch::Set(value) = self {
            field.clone_from(value);
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for FieldPatch<T> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<FieldPatch<T>, D::Error> {
        Option::<T>::deserialize(reader).map(FieldPatch::Set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Body {
        #[serde(default)]
        plan: FieldPatch<String>,
    }

    #[test]
    fn a_missing_member_leaves_a_field_and_null_empties_it() {
        let of = |text: &str| serde_json::from_str::<Body>(text).expect("a body").plan;
        let mut field = Some("old".to_owned());
        of("{}").apply_to(&mut field);
        assert_eq!(field.as_deref(), Some("old"));
        of(r#"{"plan":"new"}"#).apply_to(&mut field);
        assert_eq!(field.as_deref(), Some("new"));
        of(r#"{"plan":null}"#).apply_to(&mut field);
        assert_eq!(field, None);
    }
}
