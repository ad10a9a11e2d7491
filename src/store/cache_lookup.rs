//! The lookup of cache entries by name: each name once, a few names per command, and until the size
//! limit of the result is reached.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use crate::kv_cache::{ENTRY_BYTES_MAX, LOOKUP_BYTES_MAX, NAME_BYTES_MAX};
use crate::ledger::Unavailable;

/// At most this many entries are read in one command. Other commands run in between: a hold on the
/// same connection would wait behind a long response.
const BATCH_SIZE: usize = 4;

// The limit of the result is checked only between commands, so one command must be small against
// it.
const _: () = assert!(BATCH_SIZE * ENTRY_BYTES_MAX <= LOOKUP_BYTES_MAX / 8);

/// Looks names up with `look`, which gets at most `BATCH_SIZE` names at a time and returns their
/// entries in the same order. Names that are too long are not found. After `LOOKUP_BYTES_MAX` bytes
/// the rest counts as not found.
pub(super) async fn find_entries<F, L>(
    names: &[String],
    mut look: F,
) -> Result<Vec<Option<Bytes>>, Unavailable>
where
    F: FnMut(Vec<String>) -> L,
    L: Future<Output = Result<Vec<Option<Bytes>>, Unavailable>>,
{
    let mut seen = HashSet::new();
    let askable = names.iter().map(String::as_str);
    let askable = askable.filter(|name| name.len() <= NAME_BYTES_MAX && seen.insert(*name));
    let askable: Vec<&str> = askable.collect();
    let mut found: HashMap<&str, Bytes> = HashMap::new();
    let mut bytes = 0;
    for few in askable.chunks(BATCH_SIZE) {
        if bytes >= LOOKUP_BYTES_MAX {
            break;
        }
        let entries = look(few.iter().copied().map(str::to_owned).collect()).await?;
        for (name, entry) in few.iter().zip(entries) {
            let Some(entry) = entry else { continue };
            bytes += entry.len();
            found.insert(name, entry);
        }
    }
    Ok(names.iter().map(|name| found.get(name.as_str()).cloned()).collect())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{BATCH_SIZE, find_entries};
    use crate::kv_cache::{ENTRY_BYTES_MAX, LOOKUP_BYTES_MAX, NAME_BYTES_MAX};

    /// Looks names up in a store that has an entry for each. Returns the number of entries found,
    /// and the names of each command.
    async fn look_up(names: &[String]) -> (usize, Vec<Vec<String>>) {
        let mut batches = Vec::new();
        let entry = Bytes::from(vec![0; ENTRY_BYTES_MAX]);
        let found = find_entries(names, |few| {
            let entries = few.iter().map(|_| Some(entry.clone())).collect();
            batches.push(few);
            async { Ok(entries) }
        });
        let found = found.await.expect("an answer");
        (found.iter().filter(|entry| entry.is_some()).count(), batches)
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| n.to_string()).collect()
    }

    #[tokio::test]
    async fn a_few_names_at_a_time_in_their_order() {
        assert_eq!(look_up(&[]).await, (0, vec![]));
        assert_eq!(look_up(&names(2)).await, (2, vec![names(2)]));
        let (found, steps) = look_up(&names(BATCH_SIZE + 1)).await;
        assert_eq!(
            (found, steps.len(), steps.concat()),
            (BATCH_SIZE + 1, 2, names(BATCH_SIZE + 1))
        );
    }

    #[tokio::test]
    async fn a_name_is_asked_for_once_and_one_that_is_too_long_never() {
        let (longest, longer) = ("n".repeat(NAME_BYTES_MAX), "n".repeat(NAME_BYTES_MAX + 1));
        let repeated = [vec!["a".to_owned(); 999], vec![longer, longest.clone()]].concat();
        let once = vec![vec!["a".to_owned(), longest]];
        assert_eq!(look_up(&repeated).await, (1_000, once));
    }

    #[tokio::test]
    async fn an_answer_ends_at_its_bound() {
        let max = LOOKUP_BYTES_MAX / ENTRY_BYTES_MAX;
        assert_eq!(look_up(&names(max)).await.0, max);
        let (found, steps) = look_up(&names(10 * max)).await;
        assert_eq!((found, steps.len()), (max, max / BATCH_SIZE));
    }
}
