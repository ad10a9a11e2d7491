//! Tests of files in a folder, and in a bucket as far as that works without a server.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use futures_util::stream;
use rstest::rstest;
use tempfile::TempDir;

use super::upload::PART_BYTES;
use super::*;

const NAME: &str = "videos/a/video_1.mp4";
const MANY: u64 = 1 << 40;

type Piece = Result<Bytes, &'static str>;

fn folder() -> (TempDir, VideoFiles) {
    let root = tempfile::tempdir().expect("a folder");
    let url = format!("file:{}", root.path().join("made/for it").display());
    let files = VideoFiles::open(&FilesSection { url, ..FilesSection::default() }).expect("opened");
    (root, files)
}

/// A body of `length` bytes in pieces of `piece` bytes; each byte depends on its position.
fn pieces(length: usize, piece: usize) -> Vec<Piece> {
    let all: Vec<u8> = (0..length).map(|i| u8::try_from(i % 251).expect("small")).collect();
    all.chunks(piece).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect()
}

fn joined(pieces: &[Piece]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.clone().expect("sound")).collect()
}

async fn write(
    files: &VideoFiles,
    pieces: &[Piece],
    max: u64,
) -> Result<u64, FileWriteError<&'static str>> {
    files.write(NAME, stream::iter(pieces.to_vec()), max).await
}

async fn read(files: &VideoFiles, name: &str, range: Range<u64>) -> Vec<u8> {
    let mut read = files.read_range(name, range).await.expect("there");
    let mut all = Vec::new();
    while let Some(piece) = read.next().await {
        let piece = piece.expect("read");
        assert!((1..=256 << 10).contains(&piece.len()), "{}", piece.len());
        all.extend(piece);
    }
    all
}

/// All files below a folder, with their lengths.
fn found(root: &FilePath) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(root).expect("read") {
        let entry = entry.expect("read");
        if entry.path().is_dir() {
            all.extend(found(&entry.path()));
        } else {
            let name = entry.file_name().into_string().expect("a text");
            all.insert(name, entry.metadata().expect("read").len());
        }
    }
    all
}

/// Whether the folder becomes empty: the clean-up after a dropped future takes a while.
async fn emptied(root: &FilePath) -> bool {
    for _ in 0..200 {
        if found(root).is_empty() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

#[rstest]
#[case(1, 1)]
#[case(1000, 7)]
#[case(PART_BYTES - 1, 100_000)]
#[case(PART_BYTES, PART_BYTES)]
#[case(PART_BYTES + 1, 100_000)]
#[case(2 * PART_BYTES + 5, 3 * PART_BYTES)]
#[tokio::test]
async fn what_is_written_is_read(#[case] length: usize, #[case] piece: usize) {
    let (root, files) = folder();
    let pieces = pieces(length, piece);
    assert_eq!(files.length(NAME).await, Ok(None));
    let end = length as u64;
    assert_eq!(write(&files, &pieces, end).await, Ok(end));
    assert_eq!(files.length(NAME).await, Ok(Some(end)));
    let all = joined(&pieces);
    for (from, to) in [(0, length), (0, 1), (length - 1, length), (length / 3, length / 2 + 1)] {
        let part = read(&files, NAME, from as u64..to as u64).await;
        assert!(part == all[from..to], "{from}..{to}");
    }
    assert_eq!(found(root.path()), BTreeMap::from([("video_1.mp4".to_owned(), end)]));
    assert_eq!(files.delete(NAME).await, Ok(()));
    assert_eq!(files.delete(NAME).await, Ok(()));
    assert_eq!(files.length(NAME).await, Ok(None));
    assert_eq!(files.read_range(NAME, 0..1).await.err(), Some(FileReadError::Missing));
    assert!(found(root.path()).is_empty());
}

#[rstest]
#[case::nothing(0, 0, None, FileWriteError::Empty)]
#[case::empty_pieces(0, 3, None, FileWriteError::Empty)]
#[case::too_large_at_once(11, 0, None, FileWriteError::TooLarge)]
#[case::too_large_later(2 * PART_BYTES, 0, None, FileWriteError::TooLarge)]
#[case::broken_at_once(0, 0, Some("reset"), FileWriteError::Source("reset"))]
#[case::broken_later(5, 0, Some("reset"), FileWriteError::Source("reset"))]
#[case::broken_after_parts(2 * PART_BYTES, 0, Some("reset"), FileWriteError::Source("reset"))]
#[tokio::test]
async fn of_what_is_not_written_nothing_stays(
    #[case] length: usize,
    #[case] empty_pieces: usize,
    #[case] broken: Option<&'static str>,
    #[case] expected: FileWriteError<&'static str>,
) {
    let (root, files) = folder();
    let mut pieces = pieces(length, 1 << 20);
    pieces.extend((0..empty_pieces).map(|_| Ok(Bytes::new())));
    pieces.extend(broken.map(Err));
    let max = if expected == FileWriteError::TooLarge { length as u64 - 1 } else { MANY };
    assert_eq!(write(&files, &pieces, max).await, Err(expected));
    assert_eq!(found(root.path()), BTreeMap::new());
}

#[tokio::test]
async fn a_fault_leaves_the_file_that_was_there() {
    let (root, files) = folder();
    write(&files, &pieces(10, 10), 10).await.expect("written");
    write(&files, &[Err("reset")], 10).await.expect_err("broken");
    assert_eq!(found(root.path()), BTreeMap::from([("video_1.mp4".to_owned(), 10)]));
}

#[rstest]
#[case(5)]
#[case(PART_BYTES + 5)]
#[tokio::test]
async fn a_write_that_is_dropped_half_way_leaves_nothing(#[case] length: usize) {
    let (root, files) = folder();
    let endless = stream::iter(pieces(length, 1 << 20)).chain(stream::pending());
    let half = files.write(NAME, endless, MANY);
    let cut = tokio::time::timeout(Duration::from_millis(300), half).await;
    assert!(cut.is_err());
    assert_eq!(files.length(NAME).await, Ok(None));
    assert!(emptied(root.path()).await, "{:?}", found(root.path()));
}

#[tokio::test]
async fn a_file_is_seen_whole_or_not_at_all() {
    let (_root, files) = folder();
    let (sender, receiver) = tokio::sync::mpsc::channel::<Piece>(1);
    let source = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let writer = files.clone();
    let written = tokio::spawn(async move { writer.write(NAME, source, MANY).await });
    for piece in pieces(PART_BYTES + (3 << 20), 1 << 20) {
        sender.send(piece).await.expect("taken");
        assert_eq!(files.length(NAME).await, Ok(None));
    }
    drop(sender);
    let length = written.await.expect("ran").expect("written");
    assert_eq!(files.length(NAME).await, Ok(Some(length)));
}

#[tokio::test]
async fn of_two_who_write_one_file_at_once_one_is_seen() {
    let (root, files) = folder();
    let writes = (1..=8).map(|n| {
        let files = files.clone();
        let length = PART_BYTES + n;
        tokio::spawn(async move { write(&files, &pieces(length, 1 << 20), MANY).await })
    });
    let mut lengths = Vec::new();
    for write in writes.collect::<Vec<_>>() {
        lengths.push(write.await.expect("ran").expect("written"));
    }
    let left = found(root.path());
    assert_eq!(left.len(), 1, "{left:?}");
    let length = left["video_1.mp4"];
    assert!(lengths.contains(&length));
    let expected = joined(&pieces(usize::try_from(length).expect("small"), 1 << 20));
    assert!(read(&files, NAME, 0..length).await == expected);
}

#[tokio::test]
async fn a_file_deleted_while_it_is_read_is_read_to_its_end() {
    let (_root, files) = folder();
    write(&files, &pieces(1 << 20, 1 << 20), MANY).await.expect("written");
    let read = files.read_range(NAME, 0..1 << 20).await.expect("there");
    files.delete(NAME).await.expect("deleted");
    let lengths = read.map(|piece| piece.expect("read").len()).collect::<Vec<_>>().await;
    assert_eq!(lengths.iter().sum::<usize>(), 1 << 20);
}

#[tokio::test]
async fn a_delete_takes_what_a_killed_process_left() {
    let (root, files) = folder();
    write(&files, &pieces(10, 10), 10).await.expect("written");
    let account = root.path().join("made/for it/videos/a");
    for left in ["video_1.mp4#1", "video_1.mp4#3", "video_2.mp4#1"] {
        std::fs::write(account.join(left), "half").expect("written");
    }
    files.delete(NAME).await.expect("deleted");
    assert_eq!(found(root.path()), BTreeMap::from([("video_2.mp4#1".to_owned(), 4)]));
}

#[tokio::test]
async fn every_account_has_a_place_of_its_own_in_the_folder() {
    let (root, files) = folder();
    let longest = "x".repeat(64);
    let accounts = [".", "..", "...", ".a", "a", "a.", "a..", "-a", "_", "2E", &longest];
    for (account, length) in accounts.iter().zip(1..) {
        let pieces = pieces(length, 1);
        files
            .write(&video_name(account, "video_1"), stream::iter(pieces), MANY)
            .await
            .expect("written");
    }
    for (account, length) in accounts.iter().zip(1..) {
        assert_eq!(
            files.length(&video_name(account, "video_1")).await,
            Ok(Some(length)),
            "{account}"
        );
    }
    let videos = root.path().join("made/for it/videos");
    let below = |path: &FilePath| std::fs::read_dir(path).expect("read").count();
    // Beside the videos are the bodies.
    assert_eq!((below(&videos), below(&root.path().join("made/for it"))), (accounts.len(), 2));
    for account in accounts {
        files.delete(&video_name(account, "video_1")).await.expect("deleted");
    }
    assert!(found(root.path()).is_empty());
}

#[rstest]
#[case("acme", "videos/acme/video_1.mp4")]
#[case(".", "videos/=./video_1.mp4")]
#[case("..", "videos/=../video_1.mp4")]
#[case("..a", "videos/=..a/video_1.mp4")]
fn a_name_is_no_step_upwards(#[case] account: &str, #[case] expected: &str) {
    assert_eq!(video_name(account, "video_1"), expected);
}

#[tokio::test]
async fn a_name_that_is_a_step_upwards_is_refused() {
    let (_root, files) = folder();
    for bad in ["../a", "videos/../a", "videos/./a", "a//b", "a\n", "", "a#1"] {
        let length = files.length(bad).await;
        assert!(matches!(length, Err(FileReadError::Unavailable(_))), "{bad}: {length:?}");
    }
}

#[tokio::test]
async fn a_folder_signs_nothing_and_is_ready() {
    let (root, files) = folder();
    assert_eq!(files.presigned_url(NAME, Duration::from_secs(1)).await, Ok(None));
    assert_eq!(files.check_writable().await, Ok(()));
    assert!(found(root.path()).is_empty());
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_told_with_its_path() {
    let root = tempfile::tempdir().expect("a folder");
    std::fs::write(root.path().join("file"), "x").expect("written");
    let url = format!("file:{}", root.path().join("file/below").display());
    let fault =
        VideoFiles::open(&FilesSection { url, ..FilesSection::default() }).expect_err("no folder");
    assert!(fault.to_string().contains("file/below: "), "{fault}");

    let (root, files) = folder();
    std::fs::write(root.path().join("made/for it/videos"), "no folder").expect("written");
    let fault = write(&files, &pieces(10, 10), MANY).await;
    assert!(
        matches!(fault, Err(FileWriteError::Store(FileReadError::Unavailable(_)))),
        "{fault:?}"
    );
}

#[test]
fn an_address_that_is_none_opens_nothing() {
    let section = FilesSection { url: "gs://a".to_owned(), ..FilesSection::default() };
    let fault = VideoFiles::open(&section).expect_err("unknown");
    assert_eq!(fault.to_string(), "files.url must be \"file:PATH\" or \"s3://BUCKET/PREFIX\"");
}

#[tokio::test]
async fn an_address_of_a_bucket_is_signed_without_asking_it() {
    // Stands in for the keys that the environment would have.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = AmazonS3Builder::new()
        .with_bucket_name("bucket")
        .with_region("eu-west-1")
        .with_access_key_id("id")
        .with_secret_access_key("secret");
    let store = FileStorage::Bucket(store.build().expect("built"));
    let files = VideoFiles { storage: Arc::new(store), prefix: "some/place/".to_owned() };
    let life = Duration::from_secs(600);
    let signed = files.presigned_url(&video_name("..", "video_1"), life).await.expect("signed");
    let signed = signed.expect("an address");
    let (address, query) = signed.split_once('?').expect("a query");
    let path = "some/place/videos/%3D../video_1.mp4";
    assert_eq!(address, format!("https://s3.eu-west-1.amazonaws.com/bucket/{path}"));
    assert!(query.contains("X-Amz-Expires=600&"), "{query}");
    assert!(!query.contains("secret"), "{query}");
}

#[tokio::test]
async fn all_files_of_an_account_are_erased_and_those_of_others_stay() {
    let (root, files) = folder();
    let body = |kind, account: &str, id: &str| {
        let (account, id) = (account.to_owned(), id.to_owned());
        bodies::BodyName { kind, account, expires_s: 7, id }.path()
    };
    let mut names = Vec::new();
    for account in ["a", "aa", ".."] {
        names.push(video_name(account, "video_1"));
        names.push(body(bodies::BodyKind::Reply, account, "r"));
        names.push(body(bodies::BodyKind::Request, account, "video_2"));
    }
    for name in &names {
        let written = files.write(name, stream::iter(pieces(9, 9)), MANY).await;
        assert_eq!(written.map_err(|why| format!("{why:?}")), Ok(9), "{name}");
    }
    let videos = root.path().join("made/for it/videos/a");
    std::fs::write(videos.join("video_3.mp4#1"), "x").expect("written");
    for _ in 0..2 {
        for account in ["a", "..", "nobody"] {
            files.erase_account(account).await.expect("erased");
        }
    }
    assert!(!videos.exists());
    for name in &names {
        let is_of_other = name.contains("/aa/");
        let length = files.length(name).await.expect("an answer");
        assert_eq!(length, is_of_other.then_some(9), "{name}");
    }
}
