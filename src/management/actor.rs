//! Who makes a change, and from where.

use std::net::IpAddr;

use rustix::process::{geteuid, getuid};
use serde_json::{Map, Value};

use crate::ledger::AccountName;
use crate::operators::Role;

/// The most characters of a name that the environment gives.
const NAME_CHARS_MAX: usize = 256;

/// Who makes a change.
#[derive(Debug, Clone)]
pub(crate) enum Actor {
    /// The user of the system that runs a command.
    CommandLine,
    /// An operator, through the API.
    Operator(OperatorCaller),
    /// An operator, through the console.
    Console(OperatorCaller),
    /// A customer, through the console, for the own account.
    Customer(CustomerCaller),
}

/// An operator who calls the API or uses the console.
#[derive(Debug, Clone)]
pub(crate) struct OperatorCaller {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The address of the operator's machine, or of the proxy before this one.
    pub(crate) address: IpAddr,
    pub(crate) request_id: String,
}

/// A customer who uses the console.
#[derive(Debug, Clone)]
pub(crate) struct CustomerCaller {
    pub(crate) account: AccountName,
    /// The address of the customer's machine, or of the proxy before this one.
    pub(crate) address: IpAddr,
    pub(crate) request_id: String,
}

impl Actor {
    /// Returns where the change comes from: `cli`, `api` or `console`.
    pub(crate) fn origin(&self) -> &'static str {
        match self {
            Actor::CommandLine => "cli",
            Actor::Operator(_) => "api",
            Actor::Console(_) | Actor::Customer(_) => "console",
        }
    }

    /// Returns who makes the change: the operator, or the user according to the system and to sudo.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        match self {
            Actor::CommandLine => user_fields(),
            Actor::Operator(caller) | Actor::Console(caller) => caller_fields([
                caller.name.clone(),
                caller.role.name().to_owned(),
                caller.address.to_string(),
                caller.request_id.clone(),
            ]),
            Actor::Customer(caller) => caller_fields([
                caller.account.to_string(),
                "customer".to_owned(),
                caller.address.to_string(),
                caller.request_id.clone(),
            ]),
        }
    }
}

fn caller_fields(values: [String; 4]) -> Map<String, Value> {
    let names = ["who", "who_role", "address", "request_id"];
    let fields = names.into_iter().zip(values);
    fields.map(|(name, text)| (name.to_owned(), text.into())).collect()
}

/// Returns the name of who makes the change, out of the fields of an [`Actor`].
pub(crate) fn name_of(fields: &Map<String, Value>) -> String {
    let name = ["who", "sudo_user", "user"].into_iter().find_map(|name| fields.get(name));
    match (name.and_then(Value::as_str), fields.get("uid")) {
        (Some(name), _) => name.to_owned(),
        (None, Some(uid)) => uid.to_string(),
        (None, None) => String::new(),
    }
}

/// Returns the user that runs this process, according to the system and to sudo.
fn user_fields() -> Map<String, Value> {
    let (uid, effective) = (getuid().as_raw(), geteuid().as_raw());
    let mut who = Map::new();
    who.insert("uid".to_owned(), uid.into());
    let user = std::fs::read_to_string("/etc/passwd").ok().and_then(|all| find_user(&all, uid));
    who.extend(user.map(|name| ("user".to_owned(), name.into())));
    if effective != uid {
        who.insert("effective_uid".to_owned(), effective.into());
    }
    let login = std::fs::read_to_string("/proc/self/loginuid").ok();
    // The system reports `u32::MAX` for a process without a login session.
    let login =
        login.and_then(|text| text.trim().parse::<u32>().ok()).filter(|uid| *uid != u32::MAX);
    who.extend(login.map(|uid| ("login_uid".to_owned(), uid.into())));
    // Only root can have come by sudo; anybody else may have set the variable.
    let sudo = std::env::var("SUDO_USER").ok().filter(|_| uid == 0);
    let sudo = sudo.map(|name| name.chars().take(NAME_CHARS_MAX).collect::<String>());
    who.extend(sudo.map(|name| ("sudo_user".to_owned(), name.into())));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    who.extend(host.map(|name| ("host".to_owned(), name.trim().into())));
    who
}

/// Finds the name of a user in the text of the system's user list.
fn find_user(list: &str, uid: u32) -> Option<String> {
    list.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
        (number.parse::<u32>() == Ok(uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names() {
        let list = "root:x:0:0::/:/bin/sh\nbroken\nada:x:1000:1000::/:/bin/sh\n";
        assert_eq!(find_user(list, 1_000).as_deref(), Some("ada"));
        assert_eq!(find_user(list, 0).as_deref(), Some("root"));
        assert_eq!(find_user(list, 7), None);
    }

    #[test]
    fn an_actor_has_the_name_of_the_operator_or_of_the_user_before_sudo() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let (name, request_id) = ("ada".to_owned(), "r".to_owned());
        let actor =
            Actor::Operator(OperatorCaller { name, role: Role::Owner, address, request_id });
        assert_eq!((actor.origin(), name_of(&actor.fields())), ("api", "ada".to_owned()));
        let mut fields = Map::new();
        fields.insert("uid".to_owned(), 7.into());
        assert_eq!(name_of(&fields), "7");
        fields.insert("user".to_owned(), "root".into());
        assert_eq!(name_of(&fields), "root");
        fields.insert("sudo_user".to_owned(), "eva".into());
        assert_eq!(name_of(&fields), "eva");
    }
}
