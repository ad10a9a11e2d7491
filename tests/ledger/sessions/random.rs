//! Random steps: a small model and both stores say the same.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate::ledger::Unavailable;

use super::*;

/// A link or a session, and the number of its secret.
type Issued = (bool, u32);

/// What a store should know.
#[derive(Default)]
struct Model {
    /// Links and sessions with whose they are, the oldest first.
    kept: Vec<(Issued, Principal)>,
    /// Who has each secret that was ever issued.
    holders: BTreeMap<Issued, Principal>,
    next: u32,
}

/// The name of a principal, whatever its role.
fn person(principal: &Principal) -> String {
    match principal {
        Principal::Identity { name, .. } => format!("identity {name}"),
        other => other.to_string(),
    }
}

impl Model {
    fn add(&mut self, issued: Issued, principal: &Principal) {
        self.holders.insert(issued, principal.clone());
        self.remove(issued);
        self.kept.push((issued, principal.clone()));
        let (is_link, who) = (issued.0, person(principal));
        let is_same =
            |(other, whose): &(Issued, Principal)| other.0 == is_link && person(whose) == who;
        let most = if is_link { LINKS_MAX } else { SESSIONS_MAX };
        if self.kept.iter().filter(|kept| is_same(kept)).count() > most as usize {
            let oldest = self.kept.iter().position(is_same).expect("one of them");
            self.kept.remove(oldest);
        }
    }

    fn find(&self, issued: Issued) -> Option<Principal> {
        let found = self.kept.iter().find(|(kept, _)| *kept == issued);
        found.map(|(_, principal)| principal.clone())
    }

    fn remove(&mut self, issued: Issued) -> Option<Principal> {
        let at = self.kept.iter().position(|(kept, _)| *kept == issued)?;
        Some(self.kept.remove(at).1)
    }

    fn end_all(&mut self, principal: &Principal) -> u32 {
        let who = person(principal);
        let of_them = self.kept.extract_if(.., |(_, whose)| person(whose) == who);
        of_them.map(|((is_link, _), _)| u32::from(!is_link)).sum()
    }
}

#[derive(Debug, Clone)]
enum Drawn {
    Add {
        is_link: bool,
        who: usize,
        count: u32,
    },
    /// Adds the secret again that was issued so many before the last one.
    AddAgain {
        is_link: bool,
        back: u32,
    },
    Use {
        back: u32,
    },
    Find {
        back: u32,
    },
    End {
        back: u32,
    },
    EndAll {
        who: usize,
    },
}

fn principals() -> [Principal; 5] {
    [
        operator("ada"),
        account("ada"),
        identity("ada", Role::Owner),
        identity("ada", Role::Support),
        identity("{ada}:*", Role::Operator),
    ]
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let who = || 0..principals().len();
    let back = || prop_oneof![2 => 0..3_u32, 1 => 0..80_u32];
    let count = prop_oneof![4 => 1..=3_u32, 1 => 10..=40_u32];
    prop_oneof![
        5 => (any::<bool>(), who(), count)
            .prop_map(|(is_link, who, count)| Drawn::Add { is_link, who, count }),
        1 => (any::<bool>(), back()).prop_map(|(is_link, back)| Drawn::AddAgain { is_link, back }),
        4 => back().prop_map(|back| Drawn::Use { back }),
        3 => back().prop_map(|back| Drawn::Find { back }),
        3 => back().prop_map(|back| Drawn::End { back }),
        1 => who().prop_map(|who| Drawn::EndAll { who }),
    ]
}

/// What came of a step.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    Nothing,
    Who(Option<Principal>),
    Ended(u32),
}

async fn add(store: &dyn SessionStore, issued: Issued, who: &Principal) -> Result<(), Unavailable> {
    match issued {
        (true, seed) => store.add_link(secret(seed), who, HOUR_MS).await,
        (false, seed) => store.add_session(secret(seed), who, HOUR_MS).await,
    }
}

/// Does a step on a store. `added` is what is added, and `seed` the secret that it is about.
async fn perform(
    store: &dyn SessionStore,
    drawn: &Drawn,
    added: &[(Issued, Principal)],
    seed: u32,
) -> Came {
    for (issued, who) in added {
        assert_eq!(add(store, *issued, who).await, Ok(()));
    }
    match drawn {
        Drawn::Add { .. } | Drawn::AddAgain { .. } => Came::Nothing,
        Drawn::Use { .. } => Came::Who(used(store, seed).await),
        Drawn::Find { .. } => Came::Who(found(store, seed).await.map(|s| s.principal)),
        Drawn::End { .. } => {
            assert_eq!(store.end_session(secret(seed)).await, Ok(()));
            Came::Nothing
        }
        Drawn::EndAll { who } => {
            let ended = store.end_sessions_of(&principals()[*who]).await;
            Came::Ended(ended.expect("an answer"))
        }
    }
}

/// What is added in a step, and the secret that the step is about.
fn plan(model: &mut Model, drawn: &Drawn) -> (Vec<(Issued, Principal)>, u32) {
    match *drawn {
        Drawn::Add { is_link, who, count } => {
            let seeds = model.next..model.next + count;
            model.next = seeds.end;
            let added = seeds.map(|seed| ((is_link, seed), principals()[who].clone()));
            (added.collect(), 0)
        }
        Drawn::AddAgain { is_link, back } => {
            let issued = (is_link, model.next.saturating_sub(back + 1));
            let holder = model.holders.get(&issued).cloned();
            (holder.map(|holder| (issued, holder)).into_iter().collect(), 0)
        }
        Drawn::Use { back } | Drawn::Find { back } | Drawn::End { back } => {
            (Vec::new(), model.next.saturating_sub(back + 1))
        }
        Drawn::EndAll { .. } => (Vec::new(), 0),
    }
}

async fn same_on_all(both: &Both, all: &[Drawn]) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    for drawn in all {
        let (added, seed) = plan(&mut model, drawn);
        for (issued, who) in &added {
            model.add(*issued, who);
        }
        let expected = match drawn {
            Drawn::Add { .. } | Drawn::AddAgain { .. } => Came::Nothing,
            Drawn::Use { .. } => Came::Who(model.remove((true, seed))),
            Drawn::Find { .. } => Came::Who(model.find((false, seed))),
            Drawn::End { .. } => {
                model.remove((false, seed));
                Came::Nothing
            }
            Drawn::EndAll { who } => Came::Ended(model.end_all(&principals()[*who])),
        };
        for store in both {
            let came = perform(&*store.sessions, drawn, &added, seed).await;
            prop_assert_eq!(&came, &expected, "{:?} {}", drawn, seed);
        }
    }
    for seed in 0..model.next {
        let session = model.find((false, seed));
        let link = model.find((true, seed));
        for store in both {
            let found = found(&*store.sessions, seed).await.map(|session| session.principal);
            prop_assert_eq!(&found, &session, "the session {}", seed);
            // Each write takes a while, so only some of what is not there is asked for.
            if link.is_some() || seed % 8 == 0 {
                let used = used(&*store.sessions, seed).await;
                prop_assert_eq!(&used, &link, "the link {}", seed);
            }
        }
    }
    Ok(())
}

#[test]
fn random_steps_on_sessions_end_the_same_everywhere() {
    let server = RedisServer::shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let bounds = ProptestConfig {
        cases: 24,
        max_shrink_iters: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(bounds, |(steps in prop::collection::vec(drawn(), 1..=40))| {
        let folder = tempfile::tempdir().expect("a folder");
        runtime.block_on(async {
            let sqlite = opened(&sqlite_url(folder.path())).await;
            let redis = opened(&server.fresh_url()).await;
            same_on_all(&[sqlite, redis], &steps).await
        })?;
    });
}
