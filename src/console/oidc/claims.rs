//! Who an identity is and which role it has, as the claims of the provider tell.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde_json::{Map, Value};

use crate::conf::OidcSection;
use crate::operators::Role;
use crate::sessions::Principal;

/// Why the claims of somebody let nobody in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClaimFault {
    /// There is no name among the claims.
    #[error("the provider tells no text as '{0}'")]
    NoName(String),
    /// The name has characters that none may have, or too many.
    #[error("'{0}' is longer than 255 bytes, or has other characters than printable ASCII")]
    UnusableName(String),
    /// The provider has not verified the e-mail address.
    #[error("the provider has not verified the e-mail address {0}")]
    UnverifiedEmail(String),
    /// No value gives a role.
    #[error("none of the values of '{claim}' gives {name} a role")]
    NoRole {
        /// The name of the identity.
        name: String,
        /// The claim that was looked at.
        claim: String,
    },
}

/// Whether the claims lack one that is looked at.
pub(super) fn lacks_any(section: &OidcSection, claims: &Map<String, Value>) -> bool {
    let is_told = |claim: &str| claims.contains_key(claim);
    !is_told(&section.name_claim)
        || !is_told(&section.role_claim)
        || (looks_at_email(section) && !is_told("email_verified"))
}

/// Returns the identity that has these claims.
pub(super) fn identity_of(
    section: &OidcSection,
    claims: &Map<String, Value>,
) -> Result<Principal, ClaimFault> {
    let claim = &section.name_claim;
    let name = claims.get(claim).and_then(Value::as_str).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ClaimFault::NoName(claim.clone()))?;
    // The name is checked before anything is told of it. The role is of no account yet.
    let principal = Principal::Identity { name: name.to_owned(), role: Role::Support };
    if !principal.is_sound() {
        return Err(ClaimFault::UnusableName(claim.clone()));
    }
    if looks_at_email(section) && !is_verified(claims.get("email_verified")) {
        return Err(ClaimFault::UnverifiedEmail(name.to_owned()));
    }
    let role = role_of(section, claims.get(&section.role_claim));
    let no_role =
        || ClaimFault::NoRole { name: name.to_owned(), claim: section.role_claim.clone() };
    Ok(Principal::Identity { name: name.to_owned(), role: role.ok_or_else(no_role)? })
}

/// Whether the e-mail address is the name, or gives the role.
fn looks_at_email(section: &OidcSection) -> bool {
    section.name_claim == "email" || section.role_claim == "email"
}

/// Whether `email_verified` lets an address count. A provider that does not tell it has only
/// addresses of its own.
fn is_verified(claim: Option<&Value>) -> bool {
    match claim {
        None | Some(Value::Bool(true)) => true,
        Some(Value::String(text)) => text == "true",
        Some(_) => false,
    }
}

/// Returns the highest role that a claim gives: a text, or one of the texts of a list.
fn role_of(section: &OidcSection, claim: Option<&Value>) -> Option<Role> {
    let texts: Vec<&str> = match claim? {
        Value::String(text) => vec![text],
        Value::Array(values) => values.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let lists = [
        (Role::Owner, &section.owners),
        (Role::Operator, &section.operators),
        (Role::Support, &section.support),
    ];
    let gives = |list: &[String]| texts.iter().any(|text| list.iter().any(|value| value == text));
    lists.iter().find(|(_, list)| gives(list)).map(|(role, _)| *role)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn section() -> OidcSection {
        let list = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        OidcSection {
            issuer: "https://id.example.com".to_owned(),
            client_id: "tollgate".to_owned(),
            client_secret: None,
            scopes: Vec::new(),
            name_claim: "email".to_owned(),
            role_claim: "groups".to_owned(),
            owners: list(&["admins", "root"]),
            operators: list(&["finance"]),
            support: list(&["desk", "admins"]),
        }
    }

    fn identity(claims: &Value) -> Result<Principal, ClaimFault> {
        identity_of(&section(), claims.as_object().expect("claims"))
    }

    fn role(groups: &Value) -> Option<Role> {
        let found = identity(&json!({ "email": "ada@example.com", "groups": groups }));
        match found {
            Ok(Principal::Identity { role, .. }) => Some(role),
            Err(ClaimFault::NoRole { name, claim }) => {
                assert_eq!((&*name, &*claim), ("ada@example.com", "groups"));
                None
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_highest_role_that_a_text_or_a_list_gives_counts() {
        for (groups, expected) in [
            (json!("admins"), Some(Role::Owner)),
            (json!("finance"), Some(Role::Operator)),
            (json!("desk"), Some(Role::Support)),
            (json!(["desk", "finance"]), Some(Role::Operator)),
            (json!(["staff", "desk", "root", "finance"]), Some(Role::Owner)),
            (json!([7, null, ["admins"], "desk"]), Some(Role::Support)),
            (json!("Admins"), None),
            (json!("admins,desk"), None),
            (json!("admins desk"), None),
            (json!(["staff"]), None),
            (json!([]), None),
            (json!(""), None),
            (json!(7), None),
            (json!(true), None),
            (json!(null), None),
            (json!([["admins"]]), None),
            (json!({ "roles": ["admins"] }), None),
            (json!({ "admins": true }), None),
        ] {
            assert_eq!(role(&groups), expected, "{groups}");
        }
        let absent = identity(&json!({ "email": "ada@example.com" }));
        assert!(matches!(absent, Err(ClaimFault::NoRole { .. })), "{absent:?}");
    }

    #[test]
    fn a_name_is_printable_ascii_and_an_address_is_verified() {
        let of = |email: Value| identity(&json!({ "email": email, "groups": "desk" }));
        let name = "ada+test@example.com";
        let expected = Principal::Identity { name: name.to_owned(), role: Role::Support };
        assert_eq!(of(json!(name)), Ok(expected));
        for none in [json!(""), json!(null), json!(7), json!(["a@b.c"])] {
            assert_eq!(of(none), Err(ClaimFault::NoName("email".to_owned())));
        }
        for unusable in ["zoë@example.com", "a b@c.d", "a\n@c.d", &"x".repeat(256)] {
            assert_eq!(of(json!(unusable)), Err(ClaimFault::UnusableName("email".to_owned())));
        }
        for (verified, is_in) in [
            (json!(true), true),
            (json!("true"), true),
            (json!(false), false),
            (json!("false"), false),
            (json!(null), false),
            (json!(1), false),
        ] {
            let claims = json!({ "email": name, "email_verified": verified, "groups": "desk" });
            assert_eq!(identity(&claims).is_ok(), is_in, "{verified}");
        }
        let section = OidcSection { name_claim: "sub".to_owned(), ..section() };
        let claims = json!({ "sub": "7", "email_verified": false, "groups": "desk" });
        let found = identity_of(&section, claims.as_object().expect("claims"));
        assert_eq!(found, Ok(Principal::Identity { name: "7".into(), role: Role::Support }));
        // An address that anybody can claim gave a role.
        let section = OidcSection {
            role_claim: "email".to_owned(),
            owners: vec![name.to_owned()],
            ..section
        };
        let of = |verified: bool| {
            let claims = json!({ "sub": "7", "email": name, "email_verified": verified });
            identity_of(&section, claims.as_object().expect("claims")).is_ok()
        };
        assert!(of(true) && !of(false));
    }

    #[test]
    fn claims_that_are_looked_at_may_be_elsewhere() {
        for (claims, lacks) in [
            (json!({ "email": "a@b.c", "email_verified": true, "groups": [] }), false),
            (json!({ "email": "a@b.c", "groups": [] }), true),
            (json!({ "email": "a@b.c" }), true),
            (json!({ "groups": [] }), true),
        ] {
            assert_eq!(lacks_any(&section(), claims.as_object().expect("claims")), lacks);
        }
    }
}
