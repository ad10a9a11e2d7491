//! Who has signed in, and the text by which stores keep it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use super::bounds::IDENTITY_NAME_BYTES_MAX;
use crate::ledger::AccountName;
use crate::operators::Role;

/// Who has signed in. Its text form is `operator NAME`, `identity ROLE NAME` or `account NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Principal {
    /// An operator of the store, by its name. The role is that of its record.
    Operator(String),
    /// Somebody whom an identity provider knows.
    Identity {
        /// The name that the identity provider tells, such as an e-mail address: at most
        /// [`IDENTITY_NAME_BYTES_MAX`] printable ASCII characters without spaces.
        name: String,
        /// The role that the identity was given.
        role: Role,
    },
    /// A customer.
    Account(AccountName),
}

impl Principal {
    /// Parses the text form; `None` if the text is anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Principal> {
        let (kind, rest) = text.split_once(' ')?;
        match kind {
            "operator" => {
                AccountName::parse(rest).map(|name| Principal::Operator(name.as_str().to_owned()))
            }
            "identity" => {
                let (role, name) = rest.split_once(' ')?;
                let is_name = (1..=IDENTITY_NAME_BYTES_MAX).contains(&name.len())
                    && name.bytes().all(|byte| byte.is_ascii_graphic());
                let (name, role) = (is_name.then(|| name.to_owned())?, Role::of_name(role)?);
                Some(Principal::Identity { name, role })
            }
            "account" => AccountName::parse(rest).map(Principal::Account),
            _ => None,
        }
    }

    /// Whether the name is one, so that the text form can be parsed.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        Principal::parse(&self.to_string()).as_ref() == Some(self)
    }

    /// Returns the text form without the role: sign-ins with the same subject are those of one
    /// principal.
    #[must_use]
    pub(crate) fn subject(&self) -> String {
        match self {
            Principal::Identity { name, .. } => format!("identity {name}"),
            Principal::Operator(_) | Principal::Account(_) => self.to_string(),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Operator(name) => write!(f, "operator {name}"),
            Principal::Identity { name, role } => write!(f, "identity {} {name}", role.name()),
            Principal::Account(name) => write!(f, "account {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn principals() -> impl Strategy<Value = Principal> {
        let role = prop::sample::select(&Role::ALL[..]);
        let account = "[a-zA-Z0-9_.-]{1,64}";
        prop_oneof![
            account.prop_map(Principal::Operator),
            ("[!-~]{1,255}", role).prop_map(|(name, role)| Principal::Identity { name, role }),
            account.prop_map(|name| Principal::Account(AccountName::parse(&name).expect("one"))),
        ]
    }

    proptest! {
        #[test]
        fn a_principal_is_read_as_it_was_written(principal in principals()) {
            prop_assert!(principal.is_sound());
            prop_assert_eq!(Principal::parse(&principal.to_string()), Some(principal));
        }

        #[test]
        fn what_is_read_is_written_the_same(
            text in prop_oneof![
                "(operator|identity|account|) {0,2}(owner|support|Owner|) ?[ -~é]{0,5}",
                ".{0,20}",
            ],
        ) {
            if let Some(principal) = Principal::parse(&text) {
                prop_assert_eq!(principal.to_string(), text);
            }
        }
    }

    #[test]
    fn the_text_forms_are_these() {
        let account = AccountName::parse("acme").expect("a name");
        let identity = |role| Principal::Identity { name: "ada@example.com".to_owned(), role };
        for (principal, text, subject) in [
            (Principal::Operator("ada".to_owned()), "operator ada", "operator ada"),
            (identity(Role::Owner), "identity owner ada@example.com", "identity ada@example.com"),
            (
                identity(Role::Support),
                "identity support ada@example.com",
                "identity ada@example.com",
            ),
            (Principal::Account(account), "account acme", "account acme"),
        ] {
            assert_eq!((&*principal.to_string(), &*principal.subject()), (text, subject));
            assert_eq!(Principal::parse(text), Some(principal));
        }
    }

    #[test]
    fn anything_else_is_nobody() {
        let long = |kind: &str, bytes: usize| format!("{kind} {}", "x".repeat(bytes));
        for text in [
            "",
            "ada",
            "operator",
            "operator ",
            "operator  ada",
            "operator ada ",
            "operator a b",
            "Operator ada",
            " operator ada",
            "operator ada\n",
            "operator ada@example.com",
            "account a:b",
            "account",
            "customer acme",
            "identity ada@example.com",
            "identity owner ",
            "identity owner a b",
            "identity owner a\tb",
            "identity owner zoë@example.com",
            "identity Owner ada@example.com",
            "identity  owner ada@example.com",
            &long("operator", 65),
            &long("account", 65),
            &long("identity owner", 256),
        ] {
            assert_eq!(Principal::parse(text), None, "{text}");
        }
        for name in ["", "a b", "owner ada", "zoë", &"x".repeat(256)] {
            let role = Role::Owner;
            let unsound = [
                Principal::Operator(name.to_owned()),
                Principal::Identity { name: name.into(), role },
            ];
            assert!(unsound.iter().all(|principal| !principal.is_sound()), "{name}");
        }
    }
}
