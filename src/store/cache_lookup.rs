//! How entries are looked up: each once, a few at a time, and not more than one answer may have.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use crate::kv_cache::{ENTRY_BYTES_MAX, LOOKUP_BYTES_MAX, NAME_BYTES_MAX};
use crate::ledger::Unavailable;

/// At most this many entries are read in one command. Other commands run in between: on one
/// connection a hold would wait behind a long reply.
const BATCH_SIZE: usize = 4;

// Within one step the bound of an answer is not looked at.
const _: () = assert!(BATCH_SIZE * ENTRY_BYTES_MAX <= LOOKUP_BYTES_MAX / 8);

/// Looks names up by way of `look`, which is given a few of them and answers in the same order.
pub(super) async fn find_notes<F, L>(
    names: &[String],
    mut look: F,
) -> Result<Vec<Option<Bytes>>, Unavailable>
where
    F: FnMut(Vec<String>) -> L,
    L: Future<Output = Result<Vec<Option<Bytes>>, Unavailable>>,
{
    let mut asked = HashSet::new();
    let askable = names.iter().map(String::as_str);
    let askable = askable.filter(|name| name.len() <= NAME_BYTES_MAX && asked.insert(*name));
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

    use super::{BATCH_SIZE, find_notes};
    use crate::kv_cache::{ENTRY_BYTES_MAX, LOOKUP_BYTES_MAX, NAME_BYTES_MAX};

    /// Looks for names where every entry is there; tells how many are found, and what was asked.
    async fn asked(names: &[String]) -> (usize, Vec<Vec<String>>) {
        let mut asked = Vec::new();
        let entry = Bytes::from(vec![0; ENTRY_BYTES_MAX]);
        let found = find_notes(names, |few| {
            let entries = few.iter().map(|_| Some(entry.clone())).collect();
            asked.push(few);
            async { Ok(entries) }
        });
        let found = found.await.expect("an answer");
        (found.iter().filter(|entry| entry.is_some()).count(), asked)
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| n.to_string()).collect()
    }

    #[tokio::test]
    async fn a_few_names_at_a_time_in_their_order() {
        assert_eq!(asked(&[]).await, (0, vec![]));
        assert_eq!(asked(&names(2)).await, (2, vec![names(2)]));
        let (found, steps) = asked(&names(BATCH_SIZE + 1)).await;
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
        assert_eq!(asked(&repeated).await, (1_000, once));
    }

    #[tokio::test]
    async fn an_answer_ends_at_its_bound() {
        let most = LOOKUP_BYTES_MAX / ENTRY_BYTES_MAX;
        assert_eq!(asked(&names(most)).await.0, most);
        let (found, steps) = asked(&names(10 * most)).await;
        assert_eq!((found, steps.len()), (most, most / BATCH_SIZE));
    }
}
