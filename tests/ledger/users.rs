//! A Redis with users of its own: it reads its log as the user `default`.

use super::redis_server::RedisServer;
use super::subject::at;

/// A server that a user `us` may ask, with these rights beside its own keys and commands.
fn server_with(rights: &[&str]) -> (RedisServer, String) {
    let server = RedisServer::start();
    let user = ["ACL", "SETUSER", "us", "on", ">pw", "&*"];
    server.command(&[&user[..], rights].concat());
    let url = server.url().replace("redis://", "redis://us:pw@");
    (server, url)
}

async fn fault(url: &str) -> Option<String> {
    tollgate::store::open(&at(url.to_owned())).await.err().map(|why| why.to_string())
}

/// It started again without an error, and without the money.
#[tokio::test]
async fn a_redis_that_drops_its_log_for_want_of_rights_took_money() {
    let (server, url) = server_with(&["~*", "+@all"]);
    server.command(&["ACL", "SETUSER", "default", "off", "-@all"]);
    let told = fault(&url).await.expect("it is refused");
    assert!(told.contains("its user 'default'") && told.contains("HSET"), "{told}");
    let client = redis::Client::open(url.as_str()).expect("an address");
    let mut admin = client.get_connection().expect("a connection");
    let rights = ["SETUSER", "default", "off", "~*", "&*", "+@all"];
    redis::cmd("ACL").arg(&rights[..]).exec(&mut admin).expect("rights");
    assert_eq!(fault(&url).await, None);
    // What may write, and not to its keys, reads nothing of them either.
    let rights = ["SETUSER", "default", "resetkeys", "~others:*"];
    redis::cmd("ACL").arg(&rights[..]).exec(&mut admin).expect("rights");
    assert!(fault(&url).await.is_some());
}

#[tokio::test]
async fn a_user_that_may_not_ask_for_the_rights_of_the_log_is_told_so() {
    let (_server, url) = server_with(&["~*", "+@all", "-acl|dryrun"]);
    let told = fault(&url).await.expect("nobody knows");
    assert!(told.contains("+acl|dryrun") && told.contains("allow_volatile"), "{told}");
}

#[tokio::test]
async fn the_rights_that_the_documents_give_a_gateway_are_enough() {
    let page = include_str!("../../docs/operate/redis.md");
    let line = page.lines().find_map(|line| line.trim().strip_prefix("user gateway on >PASSWORD "));
    let rights: Vec<_> = line.expect("the line").split_whitespace().collect();
    let (_server, url) = server_with(&rights);
    assert_eq!(fault(&url).await, None);
}
