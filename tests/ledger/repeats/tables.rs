//! Tables of what is done, each with one expected output for the yardstick and both stores.

use super::yardstick::Yardstick;
use super::*;

/// The tables. Each begins with nothing.
const TABLES: &[(&str, &str)] = &[
    (
        "one call runs under a name",
        "take a = mine
         take a = mine
         take b = running
         take c from:b = running
         take d content:2 = other
         take b name:m = mine
         take b account:bob = mine
         take b account:bob name:m = mine
         take c account:bob = running",
    ),
    (
        "a call that ended gives its reply to whoever asks with the same content",
        "take a = mine
         end a with:hello = yes
         take b = replied a 5
         take b from:a = replied a 5
         take b content:2 = other
         body a = hello
         body b = none
         body a account:bob = none
         renew a = no
         free a = done
         take b = replied a 5",
    ),
    (
        "a call that ended without a reply is remembered",
        "take a = mine
         end a = yes
         take b = not_kept
         take b from:a = not_kept
         take b content:2 = other
         body a = none
         take a = not_kept",
    ),
    (
        "an empty reply is one",
        "take a = mine
         end a with: = yes
         take b = replied a 0
         body a = none",
    ),
    (
        "an end that is repeated changes nothing",
        "take a = mine
         end a with:hello = yes
         end a = yes
         end a with:other = yes
         take b = replied a 5
         body a = hello
         take c name:m = mine
         end c name:m = yes
         end c name:m with:late = yes
         take d name:m = not_kept
         body c = none",
    ),
    (
        "a name that was given free is anybody's",
        "take a = mine
         free b = done
         take b = running
         free a account:bob = done
         free a name:m = done
         take b = running
         free a = done
         free a = done
         take b content:2 = mine
         free a = done
         take c content:2 = running
         renew a = no",
    ),
    (
        "a call whose lease ran out says so until it is kept alive again",
        "take a lapsing = mine
         take b = lapsed a
         take b content:2 = other
         take b = lapsed a
         renew a = yes
         take b = running
         renew a lapsing = yes
         take b = lapsed a
         renew b = no
         take a lapsing = mine
         take b = lapsed a
         end a with:late = yes
         take b = replied a 4",
    ),
    (
        "it is taken over once, from the one of whom nothing comes",
        "take a lapsing = mine
         take b from:c = lapsed a
         take b from:a content:2 = other
         take b from:a = mine
         take c from:a = running
         renew a = no
         end a with:late = no
         free a = done
         body a = none
         take c = running
         renew b lapsing = yes
         take c from:a = lapsed b
         end b with:done = yes
         take c from:b = replied b 4",
    ),
    (
        "who knows that nothing comes need not wait for the lease",
        "take a = mine
         take b from:a = mine
         take a = running
         free b = done
         take c from:b = mine",
    ),
    (
        "a new call takes the name whoever has it",
        "take a = mine
         take b anew = mine
         end a with:first = no
         body a = none
         free a = done
         take c = running
         end b with:second = yes
         take c = replied b 6
         take d anew content:2 = mine
         take c = other
         take c content:2 = running
         free d = done
         take c = mine",
    ),
    (
        "a store that lost a name has it again when its call ends",
        "end a with:hello = yes
         take b = replied a 5
         body a = hello
         end c name:m = yes
         take b name:m = not_kept
         renew d name:o = no
         free d name:o = done
         take d name:o = mine",
    ),
    (
        "what has no life left is not there",
        "take a lapsing gone = mine
         take b = mine
         end b gone with:hello = yes
         take c = mine
         body b = none
         end c gone = yes
         take d gone = mine
         take e = running",
    ),
];

async fn holds(subject: &mut dyn Subject, title: &str, table: &str) {
    for line in table.lines().map(str::trim) {
        let (words, expected) = line.split_once(" = ").expect("what comes of it");
        assert_eq!(subject.perform(&Step::parse(words)).await, expected, "{title}: {line}");
    }
}

#[tokio::test]
async fn the_yardstick_follows_the_tables() {
    for (title, table) in TABLES {
        holds(&mut Yardstick::default(), title, table).await;
    }
}

#[tokio::test]
async fn sqlite_follows_the_tables() {
    for (title, table) in TABLES {
        let folder = tempfile::tempdir().expect("a folder");
        holds(&mut opened(&sqlite_url(folder.path())).await, title, table).await;
    }
}

#[tokio::test]
async fn redis_follows_the_tables() {
    for (title, table) in TABLES {
        holds(&mut opened(&RedisServer::shared().fresh_url()).await, title, table).await;
    }
}
