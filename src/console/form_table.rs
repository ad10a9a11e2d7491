//! All forms of the console that change something: what each asks for, and whether its sender is
//! asked once more. A form that is refused comes back with what was sent.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// How a field is filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldKind {
    /// A text, which may be left empty.
    Text,
    /// A text.
    Required,
    /// An amount in USD above zero. It is checked before a question is asked.
    Amount,
    /// A date, which may be left empty.
    Date,
    /// A box to tick.
    Checkbox,
    /// It has a value of its own each time the form is drawn, so that a form counts once.
    Unique,
}

/// A field of a form.
#[derive(Debug)]
pub(super) struct FormField {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    /// What is to be known of it; empty if nothing.
    pub(super) hint: &'static str,
    pub(super) kind: FieldKind,
}

/// A form.
#[derive(Debug)]
pub(super) struct FormRule {
    /// Where it is sent, with the names of the path's parameters.
    pub(super) path: &'static str,
    /// The beginning of the ids of its fields.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) fields: &'static [FormField],
    /// What its button says.
    pub(super) button: &'static str,
    /// What its sender is told and asked before anything changes; empty if nothing.
    pub(super) question: &'static str,
    /// Whether something ends by it.
    pub(super) is_dangerous: bool,
}

const fn field(
    name: &'static str,
    label: &'static str,
    hint: &'static str,
    kind: FieldKind,
) -> FormField {
    FormField { name, label, hint, kind }
}

const REQUEST: FormField = field("request", "", "", FieldKind::Unique);
const KEY_NAME: FormField = field("name", "Name", "what people call it", FieldKind::Text);
const MODELS: FormField = field(
    "models",
    "Models",
    "patterns with commas between them, such as lmb-*; all if left empty",
    FieldKind::Text,
);
const NETWORKS: FormField = field(
    "from",
    "Networks",
    "addresses that may use it, with commas between them, such as 192.0.2.0/24; all if left empty",
    FieldKind::Text,
);
const DAY: FormField =
    field("day_usd", "Most a day, USD", "no limit if left empty", FieldKind::Text);
const MONTH: FormField =
    field("month_usd", "Most a month, USD", "no limit if left empty", FieldKind::Text);
const TOTAL: FormField =
    field("total_usd", "Most in total, USD", "no limit if left empty", FieldKind::Text);

/// The fields of a new key.
const NEW_KEY: &[FormField] = &[
    REQUEST,
    KEY_NAME,
    MODELS,
    NETWORKS,
    field("expires", "Works until", "the beginning of this day (UTC)", FieldKind::Date),
    DAY,
    MONTH,
    TOTAL,
    field("account", "For the account's own pages, not for calls", "", FieldKind::Checkbox),
];
/// The fields of what a key may do.
const KEY_SETTINGS: &[FormField] = &[KEY_NAME, MODELS, NETWORKS, DAY, MONTH, TOTAL];
const ROTATION: &[FormField] = &[
    REQUEST,
    field(
        "overlap_h",
        "Overlap, hours",
        "for this long the old key works on: one hour if left empty; with 0 it ends at once",
        FieldKind::Text,
    ),
];
const URL: FormField = field(
    "url",
    "Address",
    "with https, such as https://hooks.example.com/tollgate",
    FieldKind::Required,
);
const LOW_BALANCE: FormField = field(
    "low_balance_usd",
    "Low balance, USD",
    "balance.low is told below this amount, such as 5.00",
    FieldKind::Text,
);
const ON_LOW_BALANCE: FormField = event("balance_low", "balance.low: little is available");
const ON_BUDGET: FormField =
    event("key_budget", "key.budget: 50, 80 or 100 % of a budget is spent");
const ON_PAYMENT: FormField = event("payment_received", "payment.received");
const ON_VIDEO: FormField = event("video_completed", "video.completed");
const ON_VIDEO_FAILURE: FormField = event("video_failed", "video.failed");
const ON_ROUTE_DOWN: FormField =
    event("route_down", "route.down: no call may take a route (not for an account)");
const ENABLED: FormField = field("enabled", "Messages are sent", "", FieldKind::Checkbox);

const fn event(name: &'static str, label: &'static str) -> FormField {
    field(name, label, "", FieldKind::Checkbox)
}

/// The fields of what a customer's endpoint is told.
const OWN_WEBHOOK: &[FormField] =
    &[REQUEST, URL, ON_LOW_BALANCE, LOW_BALANCE, ON_BUDGET, ON_PAYMENT, ON_VIDEO, ON_VIDEO_FAILURE];
const OWN_WEBHOOK_SETTINGS: &[FormField] =
    &[URL, ON_LOW_BALANCE, LOW_BALANCE, ON_BUDGET, ON_PAYMENT, ON_VIDEO, ON_VIDEO_FAILURE, ENABLED];
const SECRET_OVERLAP: &[FormField] = &[
    REQUEST,
    field(
        "overlap_h",
        "Overlap, hours",
        "for this long messages are signed by the old secret too: a day if left empty",
        FieldKind::Text,
    ),
];
const ROTATION_QUESTION: &str =
    "A new key takes the place of this one, with its name, its limits and what it may do.";
const REVOCATION_QUESTION: &str = "The key stops working at once, and for good.";

pub(super) const OPEN_ACCOUNT: FormRule = FormRule {
    path: "/accounts",
    id: "account",
    title: "Open an account",
    fields: &[
        field("name", "Name", "1 to 64 letters, digits, - _ and .", FieldKind::Required),
        field("plan", "Plan", "of the rules; the default plan if left empty", FieldKind::Text),
        field(
            "credit_usd",
            "First payment, USD",
            "such as 5.00; may be left empty",
            FieldKind::Text,
        ),
    ],
    button: "Open the account",
    question: "",
    is_dangerous: false,
};
pub(super) const PAYMENT: FormRule = FormRule {
    path: "/accounts/{name}/payments",
    id: "payment",
    title: "Add a payment",
    fields: &[
        field("amount_usd", "Amount, USD", "such as 25.00", FieldKind::Amount),
        field(
            "id",
            "Id",
            "such as the number of the invoice: the same id is never credited twice",
            FieldKind::Required,
        ),
    ],
    button: "Add the payment",
    question: "The account can spend it at once. A payment is taken back by a refund only.",
    is_dangerous: false,
};
pub(super) const ISSUE_KEY: FormRule = FormRule {
    path: "/accounts/{name}/keys",
    id: "key",
    title: "Issue a key",
    fields: NEW_KEY,
    button: "Issue the key",
    question: "",
    is_dangerous: false,
};
pub(super) const ACCOUNT_BUDGETS: FormRule = FormRule {
    path: "/accounts/{name}/budgets",
    id: "budget",
    title: "Budgets of the account",
    fields: &[DAY, MONTH],
    button: "Set the budgets",
    question: "",
    is_dangerous: false,
};
pub(super) const SUSPENSION: FormRule = FormRule {
    path: "/accounts/{name}/suspension",
    id: "suspension",
    title: "Suspend the account",
    fields: &[],
    button: "Suspend the account",
    question: "All calls of the account are refused from now on, and running streams end.",
    is_dangerous: true,
};
pub(super) const RESUMPTION: FormRule = FormRule {
    path: "/accounts/{name}/resumption",
    id: "resumption",
    title: "Resume the account",
    fields: &[],
    button: "Resume the account",
    question: "",
    is_dangerous: false,
};
pub(super) const SIGN_IN_LINK: FormRule = FormRule {
    path: "/accounts/{name}/links",
    id: "link",
    title: "Sign-in of the customer",
    fields: &[],
    button: "Make a sign-in link",
    question: "Whoever opens the link first is signed in as this customer for 12 hours, sees the \
               charges and can issue keys. It works once, within ten minutes.",
    is_dangerous: false,
};
pub(super) const KEY_CHANGE: FormRule = FormRule {
    path: "/keys/{prefix}",
    id: "settings",
    title: "What the key may do",
    fields: KEY_SETTINGS,
    button: "Change the key",
    question: "",
    is_dangerous: false,
};
pub(super) const KEY_ROTATION: FormRule = FormRule {
    path: "/keys/{prefix}/rotation",
    id: "rotation",
    title: "Rotate the key",
    fields: ROTATION,
    button: "Rotate the key",
    question: ROTATION_QUESTION,
    is_dangerous: false,
};
pub(super) const KEY_REVOCATION: FormRule = FormRule {
    path: "/keys/{prefix}/revocation",
    id: "revocation",
    title: "Revoke the key",
    fields: &[],
    button: "Revoke the key",
    question: REVOCATION_QUESTION,
    is_dangerous: true,
};
pub(super) const OWN_KEY: FormRule = FormRule { path: "/my/keys", ..ISSUE_KEY };
pub(super) const OWN_KEY_CHANGE: FormRule = FormRule { path: "/my/keys/{prefix}", ..KEY_CHANGE };
pub(super) const OWN_KEY_ROTATION: FormRule =
    FormRule { path: "/my/keys/{prefix}/rotation", ..KEY_ROTATION };
pub(super) const OWN_KEY_REVOCATION: FormRule =
    FormRule { path: "/my/keys/{prefix}/revocation", ..KEY_REVOCATION };

pub(super) const ADD_WEBHOOK: FormRule = FormRule {
    path: "/webhooks",
    id: "webhook",
    title: "Add an endpoint",
    fields: &[
        REQUEST,
        field("account", "Account", "all accounts if left empty", FieldKind::Text),
        URL,
        ON_LOW_BALANCE,
        LOW_BALANCE,
        ON_BUDGET,
        ON_PAYMENT,
        ON_VIDEO,
        ON_VIDEO_FAILURE,
        ON_ROUTE_DOWN,
    ],
    button: "Add the endpoint",
    question: "",
    is_dangerous: false,
};
pub(super) const WEBHOOK_CHANGE: FormRule = FormRule {
    path: "/webhooks/{id}",
    id: "settings",
    title: "What is told, and where",
    fields: &[
        URL,
        ON_LOW_BALANCE,
        LOW_BALANCE,
        ON_BUDGET,
        ON_PAYMENT,
        ON_VIDEO,
        ON_VIDEO_FAILURE,
        ON_ROUTE_DOWN,
        ENABLED,
    ],
    button: "Change the endpoint",
    question: "",
    is_dangerous: false,
};
pub(super) const WEBHOOK_ROTATION: FormRule = FormRule {
    path: "/webhooks/{id}/rotation",
    id: "rotation",
    title: "Replace the secret",
    fields: SECRET_OVERLAP,
    button: "Replace the secret",
    question: "",
    is_dangerous: false,
};
pub(super) const WEBHOOK_TEST: FormRule = FormRule {
    path: "/webhooks/{id}/test",
    id: "test",
    title: "Send a test",
    fields: &[],
    button: "Send a test",
    question: "",
    is_dangerous: false,
};
pub(super) const WEBHOOK_RESEND: FormRule = FormRule {
    path: "/webhooks/{id}/resend",
    id: "resend",
    title: "Send a message again",
    fields: &[field("message", "Message", "its id", FieldKind::Required)],
    button: "Send again",
    question: "",
    is_dangerous: false,
};
pub(super) const WEBHOOK_REMOVAL: FormRule = FormRule {
    path: "/webhooks/{id}/removal",
    id: "removal",
    title: "Remove the endpoint",
    fields: &[],
    button: "Remove the endpoint",
    question: "Nothing is sent to it any more, and its messages are deleted.",
    is_dangerous: true,
};
pub(super) const OWN_ADD_WEBHOOK: FormRule =
    FormRule { path: "/my/webhooks", fields: OWN_WEBHOOK, ..ADD_WEBHOOK };
pub(super) const OWN_WEBHOOK_CHANGE: FormRule =
    FormRule { path: "/my/webhooks/{id}", fields: OWN_WEBHOOK_SETTINGS, ..WEBHOOK_CHANGE };
pub(super) const OWN_WEBHOOK_ROTATION: FormRule =
    FormRule { path: "/my/webhooks/{id}/rotation", ..WEBHOOK_ROTATION };
pub(super) const OWN_WEBHOOK_TEST: FormRule =
    FormRule { path: "/my/webhooks/{id}/test", ..WEBHOOK_TEST };
pub(super) const OWN_WEBHOOK_RESEND: FormRule =
    FormRule { path: "/my/webhooks/{id}/resend", ..WEBHOOK_RESEND };
pub(super) const OWN_WEBHOOK_REMOVAL: FormRule =
    FormRule { path: "/my/webhooks/{id}/removal", ..WEBHOOK_REMOVAL };

/// All of them.
static FORMS: [FormRule; 26] = [
    OPEN_ACCOUNT,
    PAYMENT,
    ISSUE_KEY,
    ACCOUNT_BUDGETS,
    SUSPENSION,
    RESUMPTION,
    SIGN_IN_LINK,
    KEY_CHANGE,
    KEY_ROTATION,
    KEY_REVOCATION,
    OWN_KEY,
    OWN_KEY_CHANGE,
    OWN_KEY_ROTATION,
    OWN_KEY_REVOCATION,
    ADD_WEBHOOK,
    WEBHOOK_CHANGE,
    WEBHOOK_ROTATION,
    WEBHOOK_TEST,
    WEBHOOK_RESEND,
    WEBHOOK_REMOVAL,
    OWN_ADD_WEBHOOK,
    OWN_WEBHOOK_CHANGE,
    OWN_WEBHOOK_ROTATION,
    OWN_WEBHOOK_TEST,
    OWN_WEBHOOK_RESEND,
    OWN_WEBHOOK_REMOVAL,
];

/// Finds the form that is sent to a path.
pub(super) fn find_form(path: &str) -> Option<&'static FormRule> {
    FORMS.iter().find(|form| form.path == path)
}

#[cfg(test)]
mod tests {
    use super::super::access::PAGES;
    use super::*;

    #[test]
    fn each_form_that_changes_something_is_in_the_table_and_each_of_the_table_is_served() {
        let sent: Vec<_> = PAGES.iter().filter(|page| page.method == "POST").collect();
        for form in &FORMS {
            assert!(sent.iter().any(|page| page.path == form.path), "{}", form.path);
        }
        for page in sent.iter().filter(|page| !page.path.starts_with("/sign-")) {
            assert!(find_form(page.path).is_some(), "{}", page.path);
        }
    }
}
