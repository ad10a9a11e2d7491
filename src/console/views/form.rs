//! Forms: as they are filled in, as they come back when they are refused, and the question before
//! what is not easily undone.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use maud::{Markup, html};

use super::frame::token_field;
use super::parts::facts;
use crate::console::form_table::{FieldKind, FormField, FormRule};
use crate::console::forms::{CONFIRMED_FIELD, SentFields};

/// A form with where it is sent, and the session whose it is.
#[derive(Clone, Copy)]
pub(in crate::console) struct FilledForm<'a> {
    pub(in crate::console) rule: &'a FormRule,
    /// The path, with the values of its parameters.
    pub(in crate::console) action: &'a str,
    pub(in crate::console) form_token: &'a str,
    pub(in crate::console) fields: &'a SentFields,
}

impl FilledForm<'_> {
    /// Draws the form.
    pub(in crate::console) fn draw(&self) -> Markup {
        let FilledForm { rule, action, form_token, fields } = *self;
        let is_small = rule.fields.is_empty();
        html! {
            form.card[!is_small] method="post" action=(action) {
                (token_field(form_token))
                @if !is_small { h2 { (rule.title) } }
                @for field in rule.fields { (draw_field(rule.id, field, fields)) }
                button.danger[rule.is_dangerous] type="submit" { (rule.button) }
            }
        }
    }

    /// Draws the form that was refused, with the reason.
    pub(in crate::console) fn draw_refused(&self, why: &str) -> Markup {
        html! {
            p.error #refused role="alert" { (why) }
            (self.draw())
            p { a href=(parent_of(self.action)) { "Back, without a change" } }
        }
    }

    /// Draws the question whether the change is to be made.
    pub(in crate::console) fn draw_question(&self) -> Markup {
        let FilledForm { rule, action, form_token, fields } = *self;
        let shown = |field: &&FormField| field.kind != FieldKind::Unique;
        let mut about = vec![("About", html! { code { (subject_of(action)) } })];
        about.extend(rule.fields.iter().filter(shown).map(|field| {
            let value = fields.value_of(field.name);
            (field.label, html! { @if value.is_empty() { "–" } @else { (value) } })
        }));
        html! {
            p { (rule.question) }
            (facts(&about))
            form method="post" action=(action) {
                (token_field(form_token))
                @for field in rule.fields {
                    input type="hidden" name=(field.name) value=(fields.value_of(field.name));
                }
                input type="hidden" name=(CONFIRMED_FIELD) value="yes";
                button.danger type="submit" { "Yes: " (rule.button.to_lowercase()) }
            }
            p { a href=(parent_of(action)) { "No, go back" } }
        }
    }
}

fn draw_field(form: &str, field: &FormField, fields: &SentFields) -> Markup {
    let id = format!("{form}-{}", field.name);
    let hint_id = (!field.hint.is_empty()).then(|| format!("{id}-hint"));
    let value = fields.value_of(field.name);
    html! {
        @match field.kind {
            FieldKind::Unique => {
                input type="hidden" name=(field.name) value=(uuid::Uuid::now_v7().to_string());
            }
            FieldKind::Checkbox => div.field {
                label {
                    input type="checkbox" name=(field.name) value="yes"
                        checked[!value.is_empty()];
                    " " (field.label)
                }
            },
            FieldKind::Text | FieldKind::Required | FieldKind::Amount
            | FieldKind::Date => div.field {
                label for=(id) { (field.label) }
                input #(id) name=(field.name) value=(value) autocomplete="off"
                    type=(if field.kind == FieldKind::Date { "date" } else { "text" })
                    required[matches!(field.kind, FieldKind::Required | FieldKind::Amount)]
                    aria-describedby=[hint_id.as_deref()];
                @if let Some(hint_id) = &hint_id { p.hint id=(hint_id) { (field.hint) } }
            },
        }
    }
}

/// Returns the page from which a form is sent: of a path such as `/accounts/acme/payments` it is
/// that of the account.
fn parent_of(action: &str) -> &str {
    match action.rsplit_once('/') {
        Some((parent, _)) if parent.matches('/').count() >= 2 => parent,
        _ => action,
    }
}

/// Returns what a form is about, such as the name of the account in its path.
fn subject_of(action: &str) -> &str {
    let parent = parent_of(action);
    parent.rsplit_once('/').map_or(parent, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_about_what_its_path_names_and_leads_back_there() {
        for (action, parent, subject) in [
            ("/accounts", "/accounts", "accounts"),
            ("/accounts/acme/payments", "/accounts/acme", "acme"),
            ("/my/keys", "/my/keys", "keys"),
            ("/my/keys/sk-1/revocation", "/my/keys/sk-1", "sk-1"),
            ("/keys/sk-1/revocation", "/keys/sk-1", "sk-1"),
        ] {
            assert_eq!((parent_of(action), subject_of(action)), (parent, subject), "{action}");
        }
    }
}
