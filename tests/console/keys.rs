//! The console for customers: their keys, their statements, and how forms ask and come back.

use rstest::rstest;

use crate::admin_api::AdminWorld;
use crate::console::{Browser, Page as _, operator, until};
use crate::world::{ACCOUNT, Answer, Store, chat_of};

const CUSTOMER: [&str; 2] = ["--account", ACCOUNT];

/// The key that a page shows.
fn key_of(page: &str) -> String {
    let key = page.split("id=\"new-key\"").nth(1).and_then(|rest| rest.split(['>', '<']).nth(1));
    key.unwrap_or_else(|| panic!("no key: {page}")).to_owned()
}

/// The lines of the audit trail, newest first.
async fn audit(world: &AdminWorld) -> String {
    Browser::of(world, &operator("owner")).await.get("/audit").await.html()
}

#[rstest]
#[case(Store::Sqlite)]
#[case(Store::Redis)]
#[tokio::test]
async fn a_customer_issues_limits_rotates_and_revokes_a_key(#[case] store: Store) {
    let world = AdminWorld::start(store).await;
    let customer = Browser::of(&world, &CUSTOMER).await;
    let fields = "name=laptop&models=lmb-*&day_usd=2&request=form-1";
    let page = customer.post("/my/keys", fields).await.html();
    let key = key_of(&page);
    assert!(page.contains(&format!("api_key=&quot;{key}&quot;")), "set-up with the key: {page}");
    assert_eq!(customer.post("/my/keys", fields).await.status, 409, "a page was reloaded");
    let prefix = &key[..14];
    let listed = customer.get("/my/keys").await.html();
    assert!(listed.contains(prefix) && listed.contains("laptop") && !listed.contains(&key));

    let calls = format!("http://{}/v1/chat/completions", world.world.gateway.http);
    let call = async |key: &str, model: &str| {
        let request = customer.client.post(&calls).bearer_auth(key).json(&chat_of(model));
        Answer::read(request).await.status
    };
    assert_eq!(call(&key, "lmb-5.5").await, 200);
    assert_eq!(call(&key, "lma-opus-5").await, 403);
    let shown = until(&customer, &format!("/my/keys/{prefix}"), "0.008").await;
    assert!(shown.contains("value=\"2.00\"") && shown.contains("value=\"lmb-*\""), "{shown}");
    let set = "name=laptop&models=&from=&day_usd=3&month_usd=&total_usd=50";
    let changed = customer.post(&format!("/my/keys/{prefix}"), set).await;
    let own = format!("/my/keys/{prefix}");
    assert_eq!(changed.header("location"), Some(&*own), "{}", changed.html());
    let shown = customer.get(&own).await.html();
    assert!(shown.contains("value=\"3.00\"") && shown.contains("value=\"50.00\""), "{shown}");

    let rotation = "request=form-2&overlap_h=24&confirmed=yes";
    let rotated = customer.post(&format!("{own}/rotation"), rotation).await.html();
    let new = key_of(&rotated);
    assert!(new != key && rotated.contains("The old key ends"), "{rotated}");
    assert_eq!([call(&new, "lmb-5.5").await, call(&key, "lmb-5.5").await], [200, 200]);
    let revoked = customer.post(&format!("{own}/revocation"), "confirmed=yes").await;
    assert_eq!(revoked.status, 303, "{}", revoked.html());
    for _ in 0..100 {
        if call(&key, "lmb-5.5").await == 403 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!([call(&new, "lmb-5.5").await, call(&key, "lmb-5.5").await], [200, 403]);
    assert!(customer.get(&own).await.html().contains("revoked"));
    let again = customer.post(&format!("{own}/rotation"), "request=form-3&confirmed=yes").await;
    assert_eq!(again.status, 409);
    let audit = audit(&world).await;
    for told in ["key.issue", "key.set", "key.rotate", "key.revoke", "customer"] {
        assert!(audit.contains(told), "{told}: {audit}");
    }
}

/// The beginning of a key is no secret: it stands in journals and lists.
#[tokio::test]
async fn to_a_customer_the_keys_of_others_do_not_exist() {
    let world = AdminWorld::start(Store::Sqlite).await;
    world.world.command(&["account", "create", "other", "--credit", "5"]).await.done();
    let key = world.world.command(&["key", "issue", "other"]).await.done();
    let prefix = &key.trim()[..14];
    let id = world.world.command(&["key", "list", "other", "--json"]).await.done();
    let id = serde_json::from_str::<serde_json::Value>(&id).expect("keys")[0]["id"].to_string();
    let before = audit(&world).await;
    let customer = Browser::of(&world, &CUSTOMER).await;
    for name in [prefix, id.trim_matches('"'), "sk-tg-00000000"] {
        for (end, fields) in [
            ("", "name=x"),
            ("/rotation", "request=1&confirmed=yes"),
            ("/revocation", "confirmed=yes"),
        ] {
            let path = format!("/my/keys/{name}{end}");
            let answer = customer.post(&path, fields).await;
            assert_eq!(answer.status, 404, "{path}: {}", answer.html());
            assert!(!answer.html().contains("other"), "{}", answer.html());
        }
        assert_eq!(customer.get(&format!("/my/keys/{name}")).await.status, 404, "{name}");
    }
    let lines = |page: &str| page.matches("key.").count();
    assert_eq!(lines(&audit(&world).await), lines(&before), "nobody has changed a key");
    assert!(world.world.command(&["key", "list", "other"]).await.done().contains("valid"));
}

#[tokio::test]
async fn a_customer_makes_a_bounded_number_of_changes_a_day() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let customer = Browser::of(&world, &CUSTOMER).await;
    let key = key_of(&customer.post("/my/keys", "request=1").await.html());
    let path = format!("/my/keys/{}", &key[..14]);
    for _ in 1..200 {
        assert_eq!(customer.post(&path, "name=a").await.status, 303);
    }
    let refused = customer.post(&path, "name=b").await;
    assert_eq!(refused.status, 429, "{}", refused.html());
    // The operator still can.
    let owner = Browser::of(&world, &operator("operator")).await;
    let revocation = format!("/keys/{}/revocation", &key[..14]);
    assert_eq!(owner.post(&revocation, "confirmed=yes").await.status, 303);
}

#[tokio::test]
async fn a_form_that_is_refused_comes_back_with_what_was_sent() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let owner = Browser::of(&world, &operator("owner")).await;
    let fields = "amount_usd=five&id=invoice-9&confirmed=yes";
    let answer = owner.post("/accounts/acct/payments", fields).await;
    let page = answer.html();
    assert_eq!(answer.status, 400, "{page}");
    for shown in ["role=\"alert\"", "five", "value=\"invoice-9\"", "Add the payment"] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    // An amount that is none is refused before the question whether it is meant.
    for wrong in ["25+dollars", "-5", "1e3", "0", ""] {
        let fields = format!("amount_usd={wrong}&id=invoice-9");
        let answer = owner.post("/accounts/acct/payments", &fields).await;
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.html());
        assert!(answer.html().contains("role=\"alert\""), "{wrong}");
    }
    let customer = Browser::of(&world, &CUSTOMER).await;
    for (fields, shown) in [
        ("request=1&name=ci&from=10.0.0.0%2F99", "value=\"10.0.0.0/99\""),
        ("request=1&name=ci&day_usd=-1", "value=\"-1\""),
        ("request=1&name=ci&expires=2020-01-01", "value=\"2020-01-01\""),
        ("request=1&name=ci&nonsense=1", "nonsense"),
        ("request=1&account=yes&day_usd=x", "checked"),
    ] {
        let answer = customer.post("/my/keys", fields).await;
        let page = answer.html();
        assert_eq!(answer.status, 400, "{page}");
        assert!(page.contains(shown) && page.contains("Issue the key"), "{shown}: {page}");
    }
    // None of them counts as sent.
    let page = customer.post("/my/keys", "request=1&name=ci").await.html();
    key_of(&page);
    assert!(page.contains("Set up a client with it"), "{page}");
    let page = customer.post("/my/keys", "request=2&name=pages&account=yes").await.html();
    assert!(page.contains("It makes no calls") && !page.contains("Set up a client"), "{page}");
}

#[tokio::test]
async fn what_is_not_easily_undone_is_asked_once_more() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let owner = Browser::of(&world, &operator("owner")).await;
    let key = world.world.command(&["key", "issue", ACCOUNT]).await.done();
    let prefix = &key.trim()[..14];
    for (path, fields, shown) in [
        ("/accounts/acct/payments", "amount_usd=25&id=invoice-9", "invoice-9"),
        ("/accounts/acct/suspension", "", "acct"),
        (&format!("/keys/{prefix}/revocation"), "", prefix),
        (&format!("/keys/{prefix}/rotation"), "request=1", prefix),
    ] {
        let answer = owner.post(path, fields).await;
        let page = answer.html();
        assert_eq!(answer.status, 200, "{page}");
        for part in ["No, go back", "name=\"confirmed\"", shown] {
            assert!(page.contains(part), "{path} {part}: {page}");
        }
    }
    let account = owner.get("/accounts/acct").await.html();
    assert!(!account.contains("invoice-9") && account.contains("Suspend the account"));
    assert!(owner.get(&format!("/keys/{prefix}")).await.html().contains("valid"));
}

#[rstest]
#[case(Store::Sqlite)]
#[case(Store::Redis)]
#[tokio::test]
async fn a_customer_reads_a_charge_and_a_statement(#[case] store: Store) {
    let world = AdminWorld::start(store).await;
    let customer = Browser::of(&world, &CUSTOMER).await;
    let calls = format!("http://{}/v1/chat/completions", world.world.gateway.http);
    let key = world.world.command(&["key", "issue", ACCOUNT]).await.done();
    let call = customer.client.post(calls).bearer_auth(key.trim()).json(&chat_of("lmb-5.5"));
    assert_eq!(Answer::read(call).await.status, 200);
    until(&customer, "/my/charges", "/my/charges/1").await;
    let charge = customer.get("/my/charges/1").await.html();
    for shown in ["5000000", "3000000", "8000000", "lmb-5.5"] {
        assert!(charge.contains(shown), "{shown}: {charge}");
    }
    for hidden in ["route", "cost", "vendor_b"] {
        assert!(!charge.contains(hidden), "{hidden}: {charge}");
    }
    assert_eq!(customer.get("/my/charges/2").await.status, 404);
    let listed = customer.get("/my/statements").await.html();
    let month = listed.split("/my/statements/").nth(1).and_then(|rest| rest.get(..7));
    let month = month.expect("the month that runs").to_owned();
    let path = format!("/my/statements/{month}");
    let page = until(&customer, &path, "-0.008").await;
    assert!(page.contains("opening") && page.contains("not sealed"), "{page}");
    let csv = customer.get(&format!("{path}?as=csv")).await;
    assert!(csv.header("content-disposition").is_some_and(|name| name.contains(&month)));
    assert!(csv.html().contains("lmb-5.5"), "{}", csv.html());
    let json = customer.get(&format!("{path}?as=json")).await.html();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["statement"]["charges_nano"], 8_000_000);
    let chosen = customer.get(&format!("/my/statements?month={month}")).await;
    assert_eq!(chosen.header("location"), Some(&*path));
    for (wrong, status) in [("2026-13", 400), ("2199-01", 400), ("x", 400)] {
        assert_eq!(customer.get(&format!("/my/statements/{wrong}")).await.status, status);
    }
    let owner = Browser::of(&world, &operator("support")).await;
    let same = owner.get(&format!("/accounts/{ACCOUNT}/statements/{month}")).await.html();
    assert!(same.contains("-0.008"), "{same}");
}

#[tokio::test]
async fn the_lines_to_copy_have_the_address_of_the_gateway() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let customer = Browser::of(&world, &CUSTOMER).await;
    let page = customer.get("/my/setup").await.html();
    let address = format!("http://{}/v1", world.world.gateway.http);
    assert!(page.contains(&address) && page.contains("sk-tg-…"), "{page}");
}

#[tokio::test]
async fn charges_are_found_by_key_by_the_id_of_the_vendor_and_by_day() {
    let world = AdminWorld::start(Store::Sqlite).await;
    let owner = Browser::of(&world, &operator("support")).await;
    let calls = format!("http://{}/v1/chat/completions", world.world.gateway.http);
    let mut prefixes = Vec::new();
    for _ in 0..2 {
        let key = world.world.command(&["key", "issue", ACCOUNT]).await.done();
        let call = owner.client.post(&calls).bearer_auth(key.trim()).json(&chat_of("lmb-5.5"));
        assert_eq!(Answer::read(call).await.status, 200);
        prefixes.push(key.trim()[..14].to_owned());
    }
    until(&owner, "/charges?account=acct", "/charges/acct/2").await;
    let line = owner.get("/charges/acct/2").await.html();
    let member = |name: &str| {
        let rest = line.split(&format!("{name}</th>")).nth(1).expect("a member");
        let value = rest.split("<code>").nth(1).and_then(|rest| rest.split('<').next());
        value.expect("a value").to_owned()
    };
    let reply = member("reply_id");
    let [first, second] = ["/charges/acct/1\"", "/charges/acct/2\""];
    for (search, found) in [
        (format!("key={}", prefixes[0]), [true, false]),
        (format!("key={}", prefixes[1]), [false, true]),
        (format!("reply={reply}&key={}", prefixes[1]), [false, true]),
        (format!("reply={reply}&key={}x", prefixes[1]), [false, false]),
        ("until=2020-01-01".to_owned(), [false, false]),
        ("until=2199-01-01".to_owned(), [true, true]),
    ] {
        let page = owner.get(&format!("/charges?account=acct&{search}")).await.html();
        assert_eq!([page.contains(first), page.contains(second)], found, "{search}: {page}");
    }
    for wrong in ["until=yesterday&account=acct", "key=sk-tg-1", "account=nobody"] {
        assert!(owner.get(&format!("/charges?{wrong}")).await.status >= 400, "{wrong}");
    }
}
