//! What is written to files of the archive is read from them as it was.

use bytes::Bytes;
use proptest::prelude::*;

use super::day_writer::{DayWriter, FinishedPart, GROUP_LINES};
use super::fault::ArchiveFault;
use super::line::LineDigest;
use super::manifest::Manifest;
use super::part_file::PartFile;
use super::places::{DayFolder, bucket_of};
use crate::ledger::{AccountName, EntryKind, JournalEntry};
use crate::money::Money;
use crate::usage::PostedEntry;

const DAY: i64 = 1_700_006_400_000;

fn named(name: &str) -> AccountName {
    AccountName::parse(name).expect("a name")
}

fn money(nano: i64) -> Money {
    Money::from_nano(nano).expect("money")
}

fn posted(seq: u64, kind: EntryKind, amount: i64, line: &str, at: Option<i64>) -> PostedEntry {
    let (amount, written_off) = (money(amount), money(amount / 3));
    let entry = JournalEntry { seq, kind, amount, written_off, line: line.to_owned() };
    PostedEntry { entry, posted_at: at }
}

/// Writes the lines of accounts, each of which has some lines in the archive already.
fn write(accounts: &[(&str, u64, Vec<PostedEntry>)]) -> (Vec<FinishedPart>, Manifest) {
    let (mut writer, mut parts) = (DayWriter::new(), Vec::new());
    for (name, after, lines) in accounts {
        writer.begin_account(&named(name), *after, LineDigest::of_text("before"));
        for line in lines {
            parts.extend(writer.push(line.clone()).expect("a line"));
        }
    }
    parts.extend(writer.finish().expect("the last file"));
    let folder = DayFolder::new(DAY, 3).expect("a day");
    let manifest = writer.into_manifest(&folder, None);
    let json = manifest.to_json().expect("JSON");
    let read = Manifest::parse(json.as_bytes(), &folder.day, 3).expect("a manifest");
    assert_eq!(read, manifest);
    (parts, manifest)
}

/// Reads all lines of an account.
fn read(
    parts: &[FinishedPart],
    manifest: &Manifest,
    name: &str,
) -> Result<Vec<PostedEntry>, ArchiveFault> {
    let account = manifest.account(&named(name)).expect("an account");
    let (mut lines, mut digest) = (Vec::new(), LineDigest::of_text(&account.previous_digest));
    for piece in &account.pieces {
        let part = &manifest.parts[piece.part];
        let found = parts.iter().find(|found| found.name == part.file).expect("a file");
        let mut file = PartFile::open(Bytes::from(found.bytes.clone()), part)?;
        let alone = file.read_single_piece(account, piece, &digest)?;
        lines.extend(file.read_piece(account, piece, &digest)?);
        assert!(lines.ends_with(&alone));
        digest = LineDigest::of_text(&piece.digest);
    }
    Ok(lines)
}

fn kind() -> impl Strategy<Value = EntryKind> {
    prop::sample::select(vec![EntryKind::Charge, EntryKind::Correction, EntryKind::Expiry])
}

proptest! {
    #[test]
    fn lines_are_read_as_they_were_written(
        accounts in prop::collection::vec(
            (0..1_000_u64, prop::collection::vec(
                (kind(), 0..i64::MAX / 64, "(?s).{0,40}", any::<Option<i64>>()), 0..20,
            )),
            1..5,
        ),
    ) {
        let names = ["a", "b", "c", "d", "e"];
        let lines_of = |after: u64, lines: Vec<(EntryKind, i64, String, Option<i64>)>| {
            let numbered = (after + 1..).zip(lines);
            numbered
                .map(|(seq, (kind, amount, line, at))| posted(seq, kind, amount, &line, at))
                .collect::<Vec<_>>()
        };
        let accounts: Vec<_> = names
            .into_iter()
            .zip(accounts)
            .map(|(name, (after, lines))| (name, after, lines_of(after, lines)))
            .collect();
        let (parts, manifest) = write(&accounts);
        for (name, _, lines) in accounts.iter().filter(|(_, _, lines)| !lines.is_empty()) {
            prop_assert_eq!(&read(&parts, &manifest, name).expect("lines"), lines);
        }
        let with_lines = accounts.iter().filter(|(_, _, lines)| !lines.is_empty()).count();
        prop_assert_eq!(manifest.accounts.len(), with_lines);
    }
}

#[test]
fn accounts_share_row_groups_and_files_and_a_long_one_has_several() {
    let line = |seq: u64| {
        let text = format!(r#"{{"request_id":"r{seq}","at":{DAY},"model":"m{}"}}"#, seq % 7);
        posted(seq, EntryKind::Charge, 5, &text, (!seq.is_multiple_of(3)).then_some(DAY))
    };
    let long = 9 * GROUP_LINES as u64 + 5;
    let accounts = [
        ("a", 0, (1..=3).map(line).collect::<Vec<_>>()),
        ("b", 10, (11..=10 + long).map(line).collect()),
        ("c", 0, (1..=2).map(line).collect()),
    ];
    let (parts, manifest) = write(&accounts);
    assert_eq!(parts.len(), 2);
    let pieces: Vec<usize> = manifest.accounts.iter().map(|found| found.pieces.len()).collect();
    assert_eq!(pieces, [1, 2, 1]);
    for (name, _, lines) in &accounts {
        assert!(read(&parts, &manifest, name).expect("lines") == *lines, "{name}");
    }
    // The same lines have the same bytes, so a repeat after a crash writes the same files.
    let (again, _) = write(&accounts);
    let same = |(one, other): (&FinishedPart, &FinishedPart)| {
        one.name == other.name && one.bytes == other.bytes
    };
    assert!(parts.iter().zip(&again).all(same));
}

#[test]
fn what_was_changed_is_refused() {
    let lines: Vec<PostedEntry> =
        (1..=4).map(|seq| posted(seq, EntryKind::Charge, 7, "{}", None)).collect();
    let (mut parts, manifest) = write(&[("a", 0, lines)]);
    let is_refused = |parts: &[FinishedPart], manifest: &Manifest| {
        matches!(read(parts, manifest, "a"), Err(ArchiveFault::Differs(_)))
    };
    assert!(!is_refused(&parts, &manifest));
    let mut other = manifest.clone();
    other.accounts[0].previous_digest = "other".to_owned();
    assert!(is_refused(&parts, &other), "lines that follow others");
    let mut other = manifest.clone();
    other.accounts[0].account = "b".to_owned();
    let account = other.accounts[0].clone();
    let part = &manifest.parts[0];
    let mut file = PartFile::open(Bytes::from(parts[0].bytes.clone()), part).expect("a file");
    let digest = LineDigest::of_text(&account.previous_digest);
    assert!(file.read_piece(&account, &account.pieces[0], &digest).is_err(), "another account");
    parts[0].bytes[50] ^= 1;
    assert!(is_refused(&parts, &manifest), "another byte");
}

#[test]
fn a_gap_between_lines_is_not_written() {
    let mut writer = DayWriter::new();
    assert!(writer.push(posted(1, EntryKind::Charge, 1, "{}", None)).is_err(), "no account");
    writer.begin_account(&named("a"), 4, LineDigest::default());
    assert!(writer.push(posted(6, EntryKind::Charge, 1, "{}", None)).is_err(), "after 4");
}

#[test]
fn what_is_no_manifest_is_refused() {
    let lines = vec![posted(1, EntryKind::Charge, 7, "{}", None)];
    let (_, manifest) = write(&[("a", 0, lines)]);
    let parse = |manifest: &Manifest, day: &str, bucket| {
        Manifest::parse(manifest.to_json().expect("JSON").as_bytes(), day, bucket)
    };
    let day = manifest.day.clone();
    assert!(parse(&manifest, &day, 3).is_ok());
    assert!(parse(&manifest, "2020-01-01", 3).is_err());
    assert!(parse(&manifest, &day, 4).is_err());
    let mut other = manifest.clone();
    other.accounts[0].last_seq = 2;
    assert!(parse(&other, &day, 3).is_err(), "a line that is in no piece");
    let mut other = manifest.clone();
    other.accounts[0].pieces[0].part = 1;
    assert!(parse(&other, &day, 3).is_err(), "a file that is not there");
    assert!(Manifest::parse(b"{}", &day, 3).is_err());
}

#[test]
fn places_never_change() {
    let folder = DayFolder::new(DAY, 3).expect("a day");
    assert_eq!(folder.manifest(), "day=2023-11-15/bucket=03/manifest.json");
    assert_eq!(["a", "ada", "acme-42"].map(|name| bucket_of(&named(name))), [10, 13, 3]);
    assert_eq!(DayFolder::new(i64::MAX, 0), None);
}
