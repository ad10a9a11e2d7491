//! Random events in the life of a log of ends: whatever happens, nothing that is needed is lost.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// What happens to a log.
#[derive(Debug, Clone)]
enum Event {
    Append(u64),
    /// The store has everything up to this many ends before the last one.
    Durable(u64, u64),
    Forget(u64),
    Maintain {
        is_store_back: bool,
    },
    Rotate,
    /// No write is taken any more.
    FillDisk,
    DeleteFolder,
    DeleteSegment,
    DeleteLock,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (1..4_u64).prop_map(Event::Append),
        4 => (1..4_u64, 0..3_u64).prop_map(|(count, before)| Event::Durable(count, before)),
        1 => (1..4_u64).prop_map(Event::Forget),
        6 => any::<bool>().prop_map(|is_store_back| Event::Maintain { is_store_back }),
        3 => Just(Event::Rotate),
        1 => Just(Event::FillDisk),
        1 => Just(Event::DeleteFolder),
        1 => Just(Event::DeleteSegment),
        1 => Just(Event::DeleteLock),
    ]
}

/// What a log must still have, by the count of the allotment.
#[derive(Default)]
struct Expected {
    last: BTreeMap<u64, u64>,
    durable: BTreeMap<u64, u64>,
    forgotten: BTreeSet<u64>,
}

impl Expected {
    fn happen(&mut self, log: &EndLog, event: &Event) {
        let dir = root_of(log);
        match event {
            Event::Append(count) if !self.forgotten.contains(count) => {
                let seq = self.last.entry(*count).or_default();
                *seq += 1;
                append(log, "a", *count, *seq);
            }
            Event::Durable(count, before) if !self.forgotten.contains(count) => {
                let last = self.last.get(count).copied().unwrap_or_default();
                let durable = self.durable.entry(*count).or_default();
                *durable = last.saturating_sub(*before).max(*durable);
                record_durable(log, "a", *count, *durable);
            }
            Event::Forget(count) => {
                self.forgotten.insert(*count);
                log.forget(&account("a"), &allotment(log, *count));
            }
            Event::Append(_) | Event::Durable(..) => {}
            Event::Maintain { is_store_back } => {
                log.maintain(is_store_back.then(Instant::now));
                assert!(log.is_writable());
            }
            Event::Rotate => drop(log.lock_state().writer.rotate()),
            Event::FillDisk => {
                let full = File::options().write(true).open("/dev/full").expect("a device");
                log.lock_state().writer.continue_in(full);
            }
            Event::DeleteFolder => drop(fs::remove_dir_all(dir)),
            Event::DeleteSegment => {
                segments(log).last().into_iter().for_each(|file| drop(fs::remove_file(file)));
            }
            Event::DeleteLock => drop(fs::remove_file(dir.join("lock"))),
        }
    }
}

fn root_of(log: &EndLog) -> PathBuf {
    log.lock_state().dir.path.clone()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_successor_finds_all_that_is_not_durable(
        events in prop::collection::vec(event(), 1..60),
    ) {
        let root = tempfile::tempdir().expect("a folder");
        let log = open(root.path(), Retention::FOR_EMBEDDED);
        let mut expected = Expected::default();
        events.iter().for_each(|event| expected.happen(&log, event));
        log.maintain(None);
        log.flush();
        prop_assert!(log.is_writable());
        let own: BTreeMap<u64, Vec<u64>> =
            (1..4).map(|count| (count, read_back(&log, "a", count))).collect();
        drop(log);
        let found = read_orphan(&adopt(root.path()));
        for (count, own) in own {
            let found = found.get(&("a".to_owned(), count)).cloned().unwrap_or_default();
            prop_assert_eq!(&own, &found, "both read the same");
            let last = expected.last.get(&count).copied().unwrap_or_default();
            let durable = expected.durable.get(&count).copied().unwrap_or_default();
            prop_assert!(found.iter().all(|seq| (1..=last).contains(seq)));
            let is_needed = |seq: &u64| !expected.forgotten.contains(&count) && *seq > durable;
            let missing: Vec<_> =
                (1..=last).filter(is_needed).filter(|seq| !found.contains(seq)).collect();
            prop_assert_eq!(missing, Vec::<u64>::new());
        }
    }
}
