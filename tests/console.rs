//! The console: who gets in and to what, what other sites can make of it, and the way from an empty
//! gateway to a charge and its arithmetic.

use reqwest::{Client, StatusCode, redirect};
use rstest::rstest;

use crate::admin_api::AdminWorld;
use crate::world::{ACCOUNT, Answer, Store, chat_of};

mod customers;
mod keys;
mod lists;
mod live;
mod proxies;

const FORM: &str = "application/x-www-form-urlencoded";
/// All pages of operators.
const PAGES: [&str; 10] = [
    "/",
    "/accounts",
    "/accounts/acct",
    "/accounts/acct/statements",
    "/charges",
    "/models",
    "/routes",
    "/jobs",
    "/webhooks",
    "/audit",
];
/// All forms of operators, with fields that they take.
const FORMS: [(&str, &str); 17] = [
    ("/accounts", "name=new"),
    ("/accounts/acct/payments", "amount_usd=1&id=p1&confirmed=yes"),
    ("/accounts/acct/keys", "name=ci&request=1"),
    ("/accounts/acct/budgets", "day_usd=5"),
    ("/accounts/acct/suspension", "confirmed=yes"),
    ("/accounts/acct/resumption", ""),
    ("/accounts/acct/links", "confirmed=yes"),
    ("/keys/nobody", "name=ci"),
    ("/keys/nobody/rotation", "request=2&confirmed=yes"),
    ("/keys/nobody/revocation", "confirmed=yes"),
    ("/keys/nobody/revocation", ""),
    ("/webhooks", "url=https%3A%2F%2Fhooks.example.com&payment_received=yes&request=3"),
    ("/webhooks/we_1", "url=https%3A%2F%2Fhooks.example.com&payment_received=yes"),
    ("/webhooks/we_1/rotation", "request=4"),
    ("/webhooks/we_1/test", ""),
    ("/webhooks/we_1/resend", "message=msg_1"),
    ("/webhooks/we_1/removal", "confirmed=yes"),
];
/// All pages of customers.
const OWN_PAGES: [&str; 9] = [
    "/my",
    "/my/usage",
    "/my/usage.csv",
    "/my/keys",
    "/my/charges",
    "/my/statements",
    "/my/prices",
    "/my/webhooks",
    "/my/setup",
];
/// All forms of customers.
const OWN_FORMS: [(&str, &str); 10] = [
    ("/my/keys", "name=ci&request=1"),
    ("/my/keys/nobody", "name=ci"),
    ("/my/keys/nobody/rotation", "request=2&confirmed=yes"),
    ("/my/keys/nobody/revocation", "confirmed=yes"),
    ("/my/webhooks", "url=https%3A%2F%2Fhooks.example.com&payment_received=yes&request=3"),
    ("/my/webhooks/we_1", "url=https%3A%2F%2Fhooks.example.com&payment_received=yes"),
    ("/my/webhooks/we_1/rotation", "request=4"),
    ("/my/webhooks/we_1/test", ""),
    ("/my/webhooks/we_1/resend", "message=msg_1"),
    ("/my/webhooks/we_1/removal", "confirmed=yes"),
];

/// A browser, as far as a test needs one: it keeps its cookie and follows no redirect.
pub(crate) struct Browser {
    root: String,
    pub(crate) client: Client,
    cookie: String,
    form_token: String,
}

impl Browser {
    fn new(root: &str) -> Browser {
        let client = Client::builder().redirect(redirect::Policy::none()).build();
        let client = client.expect("a client");
        Browser { root: root.to_owned(), client, cookie: String::new(), form_token: String::new() }
    }

    /// Opens a link that signs in.
    pub(crate) async fn of(world: &AdminWorld, who: &[&str]) -> Browser {
        let mut browser = Browser::new(&world.root);
        let answer = browser.get(&link(world, who).await).await;
        browser.signed_in(&answer).await;
        browser
    }

    async fn signed_in(&mut self, answer: &Answer) {
        assert_eq!(
            (answer.status, answer.header("location")),
            (303, Some("/")),
            "{}",
            answer.html()
        );
        let cookie = answer.header("set-cookie").expect("a cookie");
        assert!(cookie.contains("; HttpOnly; SameSite=Lax"), "{cookie}");
        cookie.split(';').next().expect("a value").clone_into(&mut self.cookie);
        let first = self.get("/").await;
        let page = self.get(first.header("location").unwrap_or("/")).await.html();
        let token = page.split("name=\"form_token\" value=\"").nth(1);
        if let Some(token) = token {
            token.split('"').next().expect("a token").clone_into(&mut self.form_token);
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let request = self.client.get(format!("{}{path}", self.root));
        Answer::read(request.header("cookie", &self.cookie)).await
    }

    /// A form with whatever headers the case is about.
    fn form(&self, path: &str, fields: &str) -> reqwest::RequestBuilder {
        let request = self.client.post(format!("{}{path}", self.root));
        let body = format!("{fields}&form_token={}", self.form_token);
        request.header("cookie", &self.cookie).header("content-type", FORM).body(body)
    }

    pub(crate) async fn post(&self, path: &str, fields: &str) -> Answer {
        Answer::read(self.form(path, fields).header("origin", &self.root)).await
    }
}

/// An answer that is a page.
pub(crate) trait Page {
    fn html(&self) -> String;
}

impl Page for Answer {
    fn html(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The path of a new link.
async fn link(world: &AdminWorld, who: &[&str]) -> String {
    let at = world.root.strip_prefix("http://").expect("an address");
    let words = [&["console", "link"], who].concat();
    let told = world.world.command_with(&words, &[("TOLLGATE__LISTEN__CONSOLE", at)]).await.done();
    let path = told.trim().strip_prefix(&world.root).expect("an address of the console");
    path.to_owned()
}

pub(crate) const fn operator(role: &str) -> [&str; 2] {
    ["--operator", role]
}

#[tokio::test]
async fn each_role_sees_all_pages_and_only_operators_change_anything() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let nobody = Browser::new(&world.root);
    for page in PAGES {
        let answer = nobody.get(page).await;
        assert_eq!((answer.status, answer.header("location")), (303, Some("/sign-in")), "{page}");
    }
    for (form, fields) in FORMS {
        assert_eq!(nobody.post(form, fields).await.status, 403, "{form}");
    }
    for role in ["support", "operator", "owner"] {
        let browser = Browser::of(&world, &operator(role)).await;
        for page in PAGES {
            let answer = browser.get(page).await;
            assert_eq!(answer.status, 200, "{role} {page}: {}", answer.html());
            assert_eq!(
                answer.html().contains("<form class=\"card\""),
                role != "support" && ["/accounts", "/accounts/acct", "/webhooks"].contains(&page),
                "{role} {page}"
            );
        }
        for (form, fields) in FORMS {
            let status = browser.post(form, fields).await.status;
            assert_eq!(status == 403, role == "support", "{role} {form}: {status}");
        }
    }
    let customer = Browser::of(&world, &["--account", ACCOUNT]).await;
    let home = customer.get("/").await;
    assert_eq!((home.status, home.header("location")), (303, Some("/my")));
    let owner = Browser::of(&world, &operator("owner")).await;
    for page in OWN_PAGES {
        assert_eq!(customer.get(page).await.status, 200, "{page}");
        assert_eq!(owner.get(page).await.status, 403, "{page}");
        assert_eq!(nobody.get(page).await.header("location"), Some("/sign-in"), "{page}");
    }
    for (form, fields) in OWN_FORMS {
        assert_ne!(customer.post(form, fields).await.status, 403, "{form}");
        assert_eq!(owner.post(form, fields).await.status, 403, "{form}");
        assert_eq!(nobody.post(form, fields).await.status, 403, "{form}");
    }
    for page in &PAGES[1..] {
        assert_eq!(customer.get(page).await.status, 403, "{page}");
    }
    for (form, fields) in FORMS {
        assert_eq!(customer.post(form, fields).await.status, 403, "{form}");
    }
}

#[rstest]
#[case(Store::Sqlite)]
#[case(Store::Redis)]
#[tokio::test]
async fn from_a_link_to_a_charge_with_its_arithmetic(#[case] store: Store) {
    let world = AdminWorld::start(store).await;
    let browser = Browser::of(&world, &operator("operator")).await;
    let opened = browser.post("/accounts", "name=acme&plan=&credit_usd=").await;
    assert_eq!(opened.header("location"), Some("/accounts/acme"), "{}", opened.html());
    for _ in 0..2 {
        // Sent twice, and credited once.
        let paid = browser
            .post("/accounts/acme/payments", "amount_usd=5.00&id=invoice-7&confirmed=yes")
            .await;
        assert_eq!(paid.status, 303, "{}", paid.html());
    }
    let fields = "name=ci&models=&day_usd=2&month_usd=&request=form-1";
    let page = browser.post("/accounts/acme/keys", fields).await.html();
    // A page that is reloaded sends its form again.
    let again = browser.post("/accounts/acme/keys", fields).await;
    assert_eq!(again.status, 409, "{}", again.html());
    let key = page.split("id=\"new-key\"").nth(1).and_then(|rest| rest.split(['>', '<']).nth(1));
    let key = key.expect("the key");
    assert!(!browser.get("/accounts/acme").await.html().contains(key), "it is shown once");

    let calls = format!("http://{}/v1/chat/completions", world.world.gateway.http);
    let call = || browser.client.post(&calls).bearer_auth(key).json(&chat_of("lmb-5.5"));
    let answer = Answer::read(call()).await;
    assert_eq!(answer.status, 200, "{}", answer.html());
    let request = answer.header("x-request-id").expect("an id").to_owned();
    let found =
        until(&browser, &format!("/charges?account=acme&request={request}"), "/charges/acme/1")
            .await;
    // 1,000 tokens of input at 5,000 nano-USD, and 100 of output at 30,000.
    assert!(found.contains("0.008"), "{found}");
    let charge = browser.get("/charges/acme/1").await.html();
    for shown in ["5000000", "3000000", "8000000", "input tokens", "reported", &request] {
        assert!(charge.contains(shown), "{shown}: {charge}");
    }
    let account = until(&browser, "/accounts/acme", "4.992").await;
    for shown in ["invoice-7", "adds up", "ci", "payment"] {
        assert!(account.contains(shown), "{shown}: {account}");
    }
    let audit = browser.get("/audit").await.html();
    for action in ["account.create", "credit.add", "key.issue", "console.link", "console "] {
        assert!(audit.contains(action), "{action}: {audit}");
    }
    let prefix = &key[..14];
    assert_eq!(
        browser.post(&format!("/keys/{prefix}/revocation"), "confirmed=yes").await.status,
        303
    );
    // A gateway hears of it within a second.
    let is_refused = async || Answer::read(call()).await.status == 403;
    for _ in 0..100 {
        if is_refused().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("a revoked key works on");
}

/// A page, once it shows something: what gateways have charged is told some moments later.
pub(crate) async fn until(browser: &Browser, path: &str, shown: &str) -> String {
    for _ in 0..100 {
        let page = browser.get(path).await.html();
        if page.contains(shown) {
            return page;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{path} never shows {shown}: {}", browser.get(path).await.html());
}

#[tokio::test]
async fn a_link_signs_in_once_and_a_look_ahead_does_not_use_it_up() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let path = link(&world, &operator("owner")).await;
    let address = format!("{}{path}", world.root);
    let mut browser = Browser::new(&world.root);
    let head = Answer::read(browser.client.head(&address)).await;
    let ahead = browser.client.get(&address).header("sec-purpose", "prefetch;prerender");
    for answer in [head, Answer::read(ahead).await] {
        assert_eq!((answer.status, answer.header("set-cookie")), (204, None));
    }
    let answer = browser.get(&path).await;
    browser.signed_in(&answer).await;
    let again = Browser::new(&world.root).get(&path).await;
    assert_eq!((again.status, again.header("set-cookie")), (403, None));
    let secret = path.rsplit('/').next().expect("a secret");
    assert!(!world.world.log().contains(secret), "no log tells a secret");
    for wrong in ["/link/x", &format!("/link/{}", "0".repeat(64))] {
        assert_eq!(Browser::new(&world.root).get(wrong).await.status, 403, "{wrong}");
    }
}

#[tokio::test]
async fn what_another_site_sends_changes_nothing() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let mut browser = Browser::of(&world, &operator("owner")).await;
    let form = || browser.form("/accounts", "name=evil");
    let plain = || browser.client.post(format!("{}/accounts", world.root));
    let foreign = [
        form().header("origin", "https://evil.example"),
        form().header("origin", "null"),
        form().header("sec-fetch-site", "cross-site"),
        form().header("sec-fetch-site", "same-site"),
        plain().header("origin", &world.root).header("cookie", &browser.cookie),
    ];
    for request in foreign {
        let status = Answer::read(request).await.status;
        assert!(status == 403 || status == 415 || status == 400, "{status}");
    }
    let token = std::mem::take(&mut browser.form_token);
    assert_eq!(browser.post("/accounts", "name=evil").await.status, 403, "no token");
    browser.form_token = token.replace(|c: char| c.is_ascii_digit(), "a");
    assert_eq!(browser.post("/accounts", "name=evil").await.status, 403, "another token");
    browser.form_token = token;
    assert!(!browser.get("/accounts").await.html().contains("evil"));
    assert_eq!(browser.post("/accounts", "name=good").await.status, 303);
    let sign_in = browser.form("/sign-in", "token=x").header("origin", "https://evil.example");
    assert_eq!(Answer::read(sign_in).await.status, 403);
}

#[tokio::test]
async fn every_page_has_its_headers_and_only_its_own_host() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let browser = Browser::of(&world, &operator("owner")).await;
    for path in ["/", "/sign-in", "/nothing", "/accounts/nobody", "/link/x"] {
        let answer = browser.get(path).await;
        let policy = answer.header("content-security-policy").expect("a policy").to_owned();
        for rule in ["default-src 'none'", "frame-ancestors 'none'", "form-action 'self'"] {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe") && !answer.html().contains("style="), "{path}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("cache-control", "no-store"),
            ("referrer-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
    }
    assert_eq!(browser.get("/nothing").await.status, 404);
    assert_eq!(browser.get("/accounts/nobody").await.status, 404);
    for host in ["evil.example", "localhost", ""] {
        let request = browser.client.get(format!("{}/", world.root)).header("host", host);
        let answer = Answer::read(request.header("cookie", &browser.cookie)).await;
        assert!([421, 400].contains(&answer.status), "{host}: {}", answer.status);
    }
    let port = world.root.rsplit(':').next().expect("a port");
    let request = browser.client.get(format!("{}/sign-in", world.root));
    let request = request.header("host", format!("localhost:{port}"));
    assert_eq!(Answer::read(request).await.status, 200);
}

/// A field that is empty removes a limit, so it must not be empty by itself.
#[tokio::test]
async fn a_form_for_budgets_begins_with_those_that_are_set() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let browser = Browser::of(&world, &operator("owner")).await;
    let set = browser.post("/accounts/acct/budgets", "day_usd=5&month_usd=70").await;
    assert_eq!(set.status, 303, "{}", set.html());
    let page = browser.get("/accounts/acct").await.html();
    for value in ["value=\"5.00\"", "value=\"70.00\"", "<td>month</td>"] {
        assert!(page.contains(value), "{value}: {page}");
    }
    assert_eq!(browser.post("/accounts/acct/budgets", "day_usd=6&month_usd=").await.status, 303);
    let page = browser.get("/accounts/acct").await.html();
    assert!(page.contains("value=\"6.00\"") && !page.contains("<td>month</td>"), "{page}");
}

#[tokio::test]
async fn names_that_are_html_show_as_text() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let browser = Browser::of(&world, &operator("owner")).await;
    let name = "request=1&name=%3Cscript%3Ealert(1)%3C%2Fscript%3E";
    assert_eq!(browser.post("/accounts/acct/keys", name).await.status, 200);
    for path in ["/accounts/acct", "/audit", "/accounts?q=%3Cscript%3E", "/charges?account=%3Cb%3E"]
    {
        let page = browser.get(path).await.html();
        assert!(!page.contains("<script>alert") && !page.contains("<b>"), "{path}: {page}");
    }
    assert!(browser.get("/accounts/acct").await.html().contains("&lt;script&gt;alert(1)"));
}

#[rstest]
#[case(Store::Sqlite)]
#[case(Store::Redis)]
#[tokio::test]
async fn a_session_lasts_until_it_is_ended(#[case] store: Store) {
    let mut world = AdminWorld::start(store).await;
    let [one, other, third] = [
        Browser::of(&world, &operator("owner")).await,
        Browser::of(&world, &operator("owner")).await,
        Browser::of(&world, &operator("support")).await,
    ];
    let at = world.root.trim_start_matches("http://").to_owned();
    world.world.gateway.kill();
    let again = world.world.gateway_with("again", &[("TOLLGATE__LISTEN__CONSOLE", &at)]).await;
    world.world.gateway = again;
    let is_in = async |browser: &Browser| browser.get("/accounts").await.status == StatusCode::OK;
    assert!(is_in(&one).await && is_in(&other).await && is_in(&third).await);
    assert_eq!(one.post("/sign-out", "").await.header("location"), Some("/sign-in"));
    assert!(!is_in(&one).await && is_in(&other).await);
    let again = Browser::of(&world, &operator("owner")).await;
    assert_eq!(again.post("/sign-out-everywhere", "").await.status, 303);
    assert!(!is_in(&again).await && !is_in(&other).await && is_in(&third).await);
    world.world.command(&["operator", "revoke", "support"]).await.done();
    assert!(!is_in(&third).await, "a removed operator sees nothing");
}

#[tokio::test]
async fn tokens_and_keys_of_the_account_sign_in() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let mut browser = Browser::new(&world.root);
    let refused = browser.post("/sign-in", "token=sk-tg-op-wrong").await;
    assert_eq!(refused.status, 403);
    assert!(refused.html().contains("a key for calls is refused here"));
    let token = world.tokens["support"].clone();
    let answer = browser.post("/sign-in", &format!("token={token}")).await;
    browser.signed_in(&answer).await;
    assert_eq!(browser.get("/audit").await.status, 200);
    // A key for calls may be in many hands.
    let issue = async |words: &[&str]| {
        let told = world.world.command(&[&["key", "issue", ACCOUNT], words].concat()).await.done();
        told.trim().to_owned()
    };
    let mut customer = Browser::new(&world.root);
    let plain = issue(&[]).await;
    assert_eq!(customer.post("/sign-in", &format!("token={plain}")).await.status, 403);
    let elsewhere = issue(&["--endpoints", "account", "--from", "10.9.9.0/24"]).await;
    assert_eq!(customer.post("/sign-in", &format!("token={elsewhere}")).await.status, 403);
    let own = issue(&["--endpoints", "account"]).await;
    let answer = customer.post("/sign-in", &format!("token={own}")).await;
    customer.signed_in(&answer).await;
    assert_eq!(customer.get("/accounts").await.status, 403);
    // A program that reads has such a key: it must not become one that spends.
    for (form, fields) in OWN_FORMS {
        let answer = customer.post(form, fields).await;
        assert_eq!(answer.status, 403, "{form}");
        assert!(answer.html().contains("which reads only"), "{form}: {}", answer.html());
    }
    assert!(!customer.get("/my/keys").await.html().contains("Issue the key"));
    // Whoever has the key may be somebody else.
    assert_eq!(customer.get("/my").await.status, 200);
    world.world.command(&["key", "revoke", &own[..14]]).await.done();
    assert_eq!(customer.get("/my").await.header("location"), Some("/sign-in"));
}

#[tokio::test]
async fn a_provider_that_is_described_wrongly_is_told_before_anybody_signs_in() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let nobody = Browser::new(&world.root);
    for path in ["/sign-in/oidc", "/sign-in/callback?code=a&state=b"] {
        assert_eq!(nobody.get(path).await.status, 404, "{path}");
    }
    assert!(!nobody.get("/sign-in").await.html().contains("/sign-in/oidc"));
    let whole = [
        ("TOLLGATE__CONSOLE__OIDC__ISSUER", "https://id.example.com"),
        ("TOLLGATE__CONSOLE__OIDC__CLIENT_ID", "tollgate"),
        ("TOLLGATE__CONSOLE__OIDC__CLIENT_SECRET", "env:OIDC_SECRET"),
        ("TOLLGATE__CONSOLE__OIDC__ROLE_CLAIM", "groups"),
        ("TOLLGATE__CONSOLE__OIDC__OWNERS", "['admins']"),
    ];
    let check = async |more: (&'static str, &'static str)| {
        let env = [&whole[..], &[more]].concat();
        world.world.command_with(&["check"], &env).await
    };
    check(("OIDC_SECRET", "canary")).await.done();
    for (more, told) in [
        (("OIDC_SECRET", ""), "console.oidc.client_secret: env:OIDC_SECRET is missing, or empty"),
        (("TOLLGATE__CONSOLE__OIDC__ISSUER", "http://id.example.com"), "console.oidc.issuer must"),
        (("TOLLGATE__CONSOLE__OIDC__CLIENT_SECRET", "canary"), "it does not stand here itself"),
        (("TOLLGATE__LISTEN__CONSOLE", "0.0.0.0:9091"), "'console.oidc' needs 'console.url'"),
    ] {
        let run = check(more).await;
        assert!(run.code == 1 && run.err.contains(told), "{more:?}: {}", run.err);
        assert!(!run.err.contains("canary"), "{}", run.err);
    }
}
