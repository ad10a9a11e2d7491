//! The address for customers alone: what is there and what is not, its links, and its bounds.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use super::{Browser, FORMS, OWN_PAGES, PAGES, Page, operator};
use crate::admin_api::AdminWorld;
use crate::world::{ACCOUNT, Answer, Store, World, closed_port};

/// A free address of this machine.
fn free_address() -> &'static str {
    let free = closed_port();
    free.trim_start_matches("http://").trim_end_matches("/v1").to_owned().leak()
}

/// A world with both addresses, and that for customers.
async fn world(conf: &str) -> (AdminWorld, &'static str) {
    let at = free_address();
    let conf = format!("[listen]\ncustomers = \"{at}\"\n{conf}");
    (AdminWorld::of(World::start(Store::Sqlite).conf(&conf)).await, at)
}

/// What the command for a link prints.
async fn link_for(world: &AdminWorld, who: &[&str]) -> String {
    let console = world.root.trim_start_matches("http://");
    let words = [&["console", "link"], who].concat();
    let env = [("TOLLGATE__LISTEN__CONSOLE", console)];
    world.world.command_with(&words, &env).await.done().trim().to_owned()
}

fn path_of(link: &str) -> String {
    format!("/link/{}", link.rsplit('/').next().expect("a secret"))
}

#[tokio::test]
async fn only_pages_of_customers_are_at_the_address_for_customers() {
    let (world, at) = world("").await;
    let root = format!("http://{at}");
    let link = link_for(&world, &["--account", ACCOUNT]).await;
    assert!(link.starts_with(&format!("{root}/link/")), "{link}");
    let mut customer = Browser::new(&root);
    let answer = customer.get(&path_of(&link)).await;
    customer.signed_in(&answer).await;
    let nobody = Browser::new(&root);
    // Whoever is an operator at the other address is nobody here.
    let mut owner = Browser::of(&world, &operator("owner")).await;
    root.clone_into(&mut owner.root);
    owner.cookie = owner.cookie.replace("tollgate=", "tollgate-customer=");
    for browser in [&customer, &nobody, &owner] {
        for page in &PAGES[1..] {
            assert_eq!(browser.get(page).await.status, 404, "{page}");
        }
        for page in ["/accounts/acct/keys", "/charges/acct/1", "/admin/v1/accounts", "/admin/"] {
            assert_eq!(browser.get(page).await.status, 404, "{page}");
        }
        for (form, fields) in FORMS {
            assert_eq!(browser.post(form, fields).await.status, 404, "{form}");
        }
    }
    let token = world.tokens["owner"].as_str();
    let api = customer.client.get(format!("{root}/admin/v1/accounts")).bearer_auth(token);
    assert_eq!(Answer::read(api).await.status, 404);
    for page in OWN_PAGES {
        assert_eq!(customer.get(page).await.status, 200, "{page}");
        for browser in [&nobody, &owner] {
            assert_eq!(browser.get(page).await.header("location"), Some("/sign-in"), "{page}");
        }
    }
    assert_eq!(customer.get("/").await.header("location"), Some("/my"));
    assert_eq!(owner.get("/").await.header("location"), Some("/sign-in"));
    let page = nobody.get("/sign-in").await.html();
    let style = page.split("href=\"/assets/").nth(1).and_then(|rest| rest.split('"').next());
    let style = format!("/assets/{}", style.expect("a stylesheet"));
    assert_eq!(nobody.get(&style).await.status, 200, "{style}");

    let refused = nobody.post("/sign-in", &format!("token={token}")).await;
    assert_eq!((refused.status, refused.header("set-cookie")), (403, None));
    assert!(refused.html().contains("This address is for customers."), "{}", refused.html());
    let link = link_for(&world, &operator("owner")).await;
    assert!(link.starts_with(&format!("{}/link/", world.root)), "{link}");
    let refused = nobody.get(&path_of(&link)).await;
    assert_eq!((refused.status, refused.header("set-cookie")), (403, None));
    // The pages of customers are at the other address too.
    let link = link_for(&world, &["--account", ACCOUNT]).await;
    let mut other = Browser::new(&world.root);
    let answer = other.get(&path_of(&link)).await;
    other.signed_in(&answer).await;
    assert_eq!(other.get("/my").await.status, 200);
}

#[tokio::test]
async fn an_operator_makes_a_link_for_a_customer_on_the_page_of_the_account() {
    let (world, at) = world("").await;
    let owner = Browser::of(&world, &operator("owner")).await;
    let page = owner.get("/accounts/acct").await.html();
    assert!(page.contains("Sign-in of the customer"), "{page}");
    let asked = owner.post("/accounts/acct/links", "").await.html();
    assert!(asked.contains("signed in as this customer") && !asked.contains("/link/"), "{asked}");
    let made = owner.post("/accounts/acct/links", "confirmed=yes").await.html();
    let link = made.split("id=\"new-link\"").nth(1).and_then(|rest| rest.split(['>', '<']).nth(1));
    let link = link.expect("a link");
    assert!(link.starts_with(&format!("http://{at}/link/")), "{link}");
    let mut customer = Browser::new(&format!("http://{at}"));
    let answer = customer.get(&path_of(link)).await;
    customer.signed_in(&answer).await;
    assert_eq!(customer.get("/my").await.status, 200);
    let used = Browser::new(&format!("http://{at}")).get(&path_of(link)).await;
    assert_eq!((used.status, used.header("set-cookie")), (403, None));
    assert!(used.html().contains("Ask the operator for one"), "{}", used.html());
    let secret = link.rsplit('/').next().expect("a secret");
    assert!(!world.world.log().contains(secret), "no log tells a secret");
    assert_eq!(owner.post("/accounts/nobody/links", "confirmed=yes").await.status, 404);
}

#[tokio::test]
async fn customers_are_sent_to_their_public_address() {
    let url = "https://pay.example.com";
    let (world, at) = world(&format!("[console]\ncustomers_url = \"{url}\"")).await;
    let link = link_for(&world, &["--account", ACCOUNT]).await;
    assert!(link.starts_with(&format!("{url}/link/")), "{link}");
    let link_of_operator = link_for(&world, &operator("owner")).await;
    assert!(link_of_operator.starts_with(&world.root), "{link_of_operator}");
    let browser = Browser::new(&format!("http://{at}"));
    assert_eq!(browser.get("/sign-in").await.status, 421, "another host");
    let open = browser.client.get(format!("http://{at}{}", path_of(&link)));
    let opened = Answer::read(open.header("host", "pay.example.com")).await;
    assert_eq!(opened.status, 303, "{}", opened.html());
    let cookie = opened.header("set-cookie").expect("a cookie");
    // Browsers send cookies to all ports of a host, so an operator there stays signed in.
    assert!(
        cookie.starts_with("__Host-tollgate-customer=") && cookie.ends_with("; Secure"),
        "{cookie}"
    );
    // The console has none, so its host is that of its listener.
    assert_eq!(Browser::new(&world.root).get("/sign-in").await.status, 200);
}

#[tokio::test]
async fn customers_do_not_take_the_places_of_operators() {
    let (world, at) = world("").await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(at).await.expect("a connection"));
    }
    let owner = Browser::of(&world, &operator("owner")).await;
    assert_eq!(owner.get("/accounts").await.status, 200);
    drop(silent);
    // It may take a moment until their places are free.
    let address = format!("http://{at}/sign-in");
    let answers = async || reqwest::get(&address).await.is_ok_and(|answer| answer.status() == 200);
    for _ in 0..100 {
        if answers().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the places of connections that were closed stay taken");
}

/// A connection from another address of this machine.
async fn connect_from(address: &str, at: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let from = SocketAddr::new(address.parse().expect("an address"), 0);
    socket.bind(from).expect("an address of this machine");
    socket.connect(at.parse().expect("an address")).await.expect("a connection")
}

/// A browser at another address of this machine.
fn browser_from(address: &str, root: &str) -> Browser {
    let from: IpAddr = address.parse().expect("an address");
    let client = reqwest::Client::builder().local_address(from).build().expect("a client");
    Browser { client, ..Browser::new(root) }
}

#[tokio::test]
async fn silent_connections_of_one_address_kept_other_customers_out() {
    let (_world, at) = world("").await;
    let mut silent = Vec::new();
    for _ in 0..600 {
        silent.push(connect_from("127.0.0.2", at).await);
    }
    let other = browser_from("127.0.0.3", &format!("http://{at}"));
    assert_eq!(other.get("/sign-in").await.status, 200);
    drop(silent);
}

#[tokio::test]
async fn bodies_that_do_not_come_took_the_places_of_requests() {
    let (_world, at) = world("").await;
    let head = format!(
        "POST /sign-in HTTP/1.1\r\nhost: {at}\r\ncontent-length: 40\r\n\
         content-type: application/x-www-form-urlencoded\r\n\r\ntoken="
    );
    let mut slow = Vec::new();
    for address in ["127.0.0.2", "127.0.0.3", "127.0.0.4"] {
        for _ in 0..30 {
            let mut stream = connect_from(address, at).await;
            stream.write_all(head.as_bytes()).await.expect("sent");
            slow.push(stream);
        }
    }
    let other = browser_from("127.0.0.5", &format!("http://{at}"));
    for _ in 0..20 {
        assert_eq!(other.get("/sign-in").await.status, 200);
    }
    drop(slow);
}

#[tokio::test]
async fn keys_of_an_account_sign_in_two_hundred_times_a_day() {
    let (world, at) = world("").await;
    let issue = ["key", "issue", ACCOUNT, "--endpoints", "account"];
    let key = world.world.command(&issue).await.done().trim().to_owned();
    let browser = Browser::new(&format!("http://{at}"));
    for _ in 0..200 {
        assert_eq!(browser.post("/sign-in", &format!("token={key}")).await.status, 303);
    }
    let refused = browser.post("/sign-in", &format!("token={key}")).await;
    assert_eq!((refused.status, refused.header("set-cookie")), (429, None));
    assert!(refused.html().contains("ask the operator for a link"), "{}", refused.html());
    let link = link_for(&world, &["--account", ACCOUNT]).await;
    assert_eq!(browser.get(&path_of(&link)).await.status, 303);
}
