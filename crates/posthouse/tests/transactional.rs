//! Handlers that settle in their own transaction, on the store in memory: every way in which a handler and its commit can fall apart, in
//! a time that moves when everybody sleeps.

use posthouse::{
    Admin, Attempt, AttemptOutcome, AuditFilter, DeadReason, Error, Message, Outcome, Relay, RetryPolicy, State,
    relay::{Destination, Failure, Handling, IntoOutcome, transactional},
};
use posthouse_testkit::{Memory, memory};
use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

pub const SECOND: Duration = Duration::from_secs(1);

/// A relay that runs until it is stopped.
pub struct Running {
    cancel: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub fn start(relay: Relay) -> Self {
        let cancel = CancellationToken::new();
        let task = tokio::spawn(relay.run(cancel.clone()));
        Self { cancel, task }
    }

    /// For a process that is killed.
    pub async fn stop_never(self) {
        self.task.await.unwrap().unwrap();
    }

    pub async fn stop(self) {
        self.cancel.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// A store whose clock is that of the runtime.
fn store() -> Memory {
    let start = Instant::now();
    Memory::with_clock(
        memory::Options::default(),
        Arc::new(move || memory::START.plus(start.elapsed())),
    )
}

/// Tries again after a second.
fn billing(store: &Memory, handler: impl Into<Destination>) -> Relay {
    let to = Destination::new("billing", handler).retry(RetryPolicy::table(5, [SECOND]));
    Relay::builder(Arc::new(store.clone())).route("usage", to)
}

/// One message, handled until it is done.
struct Story {
    store: Memory,
    id: posthouse::MessageId,
    relay: Running,
}

impl Story {
    /// `first` handles the first attempt; whatever comes after it handles it well.
    async fn begin<A>(first: impl Fn(Handling<Memory>) -> A + Send + Sync + 'static) -> Self
    where
        A: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let first = Arc::new(first);
        Self::with(store(), move |delivery: Handling<Memory>| {
            let first = first.clone();
            async move {
                match delivery.attempt {
                    1 => first(delivery).await,
                    _ => well(delivery).await,
                }
            }
        })
        .await
    }

    async fn with<A>(store: Memory, handler: impl Fn(Handling<Memory>) -> A + Send + Sync + 'static) -> Self
    where
        A: Future<Output: IntoOutcome> + Send + 'static,
    {
        let mut tx = store.begin();
        let id = tx.enqueue(Message::json("usage", &42).unwrap()).await.unwrap().id();
        tx.commit();
        let relay = Running::start(billing(&store, transactional(store.clone(), handler)));
        Self { store, id, relay }
    }

    async fn until(&self, state: State) {
        let waited = async {
            while self.store.find(self.id).await.unwrap().unwrap().state != state {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(3600 * SECOND, waited)
            .await
            .expect("it does not happen");
    }

    async fn attempts(&self) -> Vec<Attempt> {
        self.store.attempts(self.id).await.unwrap()
    }

    /// Done with one note, and these attempts before the one that delivered it: nothing else is remembered.
    async fn ends_after(self, failures: &[&str]) {
        self.until(State::Done).await;
        let (attempts, notes) = (self.attempts().await, self.store.notes());
        self.relay.stop().await;
        let (last, before) = attempts.split_last().unwrap();
        let codes: Vec<_> = before.iter().map(|a| a.code.as_deref().unwrap_or("none")).collect();
        assert_eq!((codes, last.outcome), (failures.to_vec(), AttemptOutcome::Delivered));
        assert_eq!(notes, ["billed"]);
        let audit = self.store.audit(&AuditFilter::default()).await.unwrap();
        assert!(audit.is_empty(), "{audit:?}");
    }
}

/// Writes and settles in a transaction that is open still.
async fn settled(delivery: &Handling<Memory>) -> memory::MemoryTx {
    let mut tx = delivery.outbox().begin();
    tx.note("billed");
    let verdict = tx.settle_in(&delivery.settlement(Outcome::delivered())).await.unwrap();
    assert!(verdict.is_settled());
    tx
}

async fn well(delivery: Handling<Memory>) -> Result<(), Failure> {
    settled(&delivery).await.commit();
    Ok(())
}

fn oops() -> Failure {
    std::io::Error::other("oops").into()
}

#[tokio::test(start_paused = true)]
async fn what_it_writes_commits_with_the_settlement() {
    Story::begin(well).await.ends_after(&[]).await;
}

/// The writes are gone with the settlement, so it is tried again.
#[tokio::test(start_paused = true)]
async fn a_failure_after_settling_rolls_both_back() {
    let story = Story::begin(|delivery| async move {
        let _tx = settled(&delivery).await;
        Err(oops())
    });
    story.await.ends_after(&["handler_failed"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_after_settling_rolls_both_back() {
    let story = Story::begin(|delivery| async move {
        let _tx = settled(&delivery).await;
        panic!("oops")
    });
    story.await.ends_after(&["panic"]).await;
}

/// It says that all is well, and is not believed.
#[tokio::test(start_paused = true)]
async fn a_forgotten_commit_is_no_delivery() {
    let story = Story::begin(|delivery| async move {
        drop(settled(&delivery).await);
        Ok(())
    });
    story.await.ends_after(&["rolled_back"]).await;
}

/// Its writes may be committed, and the message would be sent for ever: the mistake is told.
#[tokio::test(start_paused = true)]
async fn ok_without_a_settlement_is_a_mistake() {
    let story = Story::begin(|_| async { Ok(()) }).await;
    let store = story.store.clone();
    let id = story.id;
    story.ends_after(&["not_settled"]).await;
    let told = store.attempts(id).await.unwrap()[0].error.clone().unwrap();
    assert!(told.contains("settle_in"), "{told}");
}

/// A failure that it answers without having settled is taken as of any function.
#[tokio::test(start_paused = true)]
async fn a_failure_before_settling_is_its_answer() {
    Story::begin(|_| async { Err(oops()) })
        .await
        .ends_after(&["handler_failed"])
        .await;
    let story = Story::with(store(), |delivery: Handling<Memory>| async move {
        let _: String = delivery.json()?;
        Ok::<_, Failure>(())
    })
    .await;
    story.until(State::Dead).await;
    assert_eq!(
        story.attempts().await[0].code.as_deref(),
        Some("SCHEMA.VALIDATION_FAILED")
    );
    story.relay.stop().await;
}

/// It is committed, whatever is said, or not said, after that.
#[tokio::test(start_paused = true)]
async fn what_is_committed_stays_delivered() {
    let fails = Story::begin(|delivery| async move {
        well(delivery).await?;
        Err(oops())
    });
    fails.await.ends_after(&[]).await;
    let panics = Story::begin(|delivery| async move {
        well(delivery).await?;
        panic!("oops")
    });
    panics.await.ends_after(&[]).await;
    let hangs = Story::begin(|delivery| async move {
        well(delivery).await?;
        std::future::pending().await
    });
    let hangs = hangs.await;
    hangs.until(State::Done).await;
    tokio::time::sleep(60 * SECOND).await;
    hangs.ends_after(&[]).await;
}

/// The handler is given up, and its transaction is not: it is waited for, and its end decides.
#[tokio::test(start_paused = true)]
async fn an_open_transaction_is_waited_for() {
    for commits in [true, false] {
        let story = Story::begin(move |delivery| async move {
            let tx = settled(&delivery).await;
            tokio::spawn(async move {
                tokio::time::sleep(11 * SECOND).await;
                if commits {
                    tx.commit();
                }
            });
            std::future::pending().await
        });
        let failures: &[&str] = if commits { &[] } else { &["timeout"] };
        story.await.ends_after(failures).await;
    }
}

/// The same, past the deadline: the lock keeps everybody away, and nothing is guessed.
#[tokio::test(start_paused = true)]
async fn a_transaction_open_past_its_lease_decides_by_its_end() {
    for commits in [true, false] {
        let story = Story::begin(move |delivery| async move {
            let tx = settled(&delivery).await;
            tokio::spawn(async move {
                tokio::time::sleep(60 * SECOND).await;
                if commits {
                    tx.commit();
                }
            });
            std::future::pending().await
        })
        .await;
        tokio::time::sleep(55 * SECOND).await;
        assert_eq!(
            story.store.find(story.id).await.unwrap().unwrap().epoch,
            1,
            "nobody else got it"
        );
        let failures: &[&str] = if commits { &[] } else { &["lease_expired"] };
        story.ends_after(failures).await;
    }
}

/// A commit on its way when the relay stops is found.
#[tokio::test(start_paused = true)]
async fn a_stop_reads_back_too() {
    let story = Story::begin(|delivery| async move {
        let tx = settled(&delivery).await;
        tokio::spawn(async move {
            tokio::time::sleep(5 * SECOND).await;
            tx.commit();
        });
        std::future::pending().await
    })
    .await;
    tokio::time::sleep(SECOND).await;
    story.relay.stop().await;
    assert_eq!(story.store.find(story.id).await.unwrap().unwrap().state, State::Done);
    let attempts = story.store.attempts(story.id).await.unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!(story.store.notes(), ["billed"]);
}

/// A handler that was given up and comes back too late: it is told that its lease is lost, and its writes go nowhere.
#[tokio::test(start_paused = true)]
async fn a_late_handler_is_refused() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tells = told.clone();
    let story = Story::begin(move |delivery| {
        let tells = tells.clone();
        async move {
            tokio::spawn(async move {
                tokio::time::sleep(60 * SECOND).await;
                let mut tx = delivery.outbox().begin();
                tx.note("billed");
                let verdict = tx.settle_in(&delivery.settlement(Outcome::delivered())).await;
                tells.lock().unwrap().push(verdict.unwrap().is_lost());
            });
            std::future::pending().await
        }
    })
    .await;
    story.until(State::Done).await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(*told.lock().unwrap(), [true]);
    story.ends_after(&["timeout"]).await;
}

/// What it writes about a failure commits with the failure.
#[tokio::test(start_paused = true)]
async fn a_failure_can_be_settled_with_its_record() {
    let story = Story::with(store(), |delivery: Handling<Memory>| async move {
        let mut tx = delivery.outbox().begin();
        tx.note(&format!("failed {}", delivery.attempt));
        let outcome = match delivery.attempt {
            1 => Outcome::retry("busy", "not now"),
            _ => Outcome::reject("closed", "never"),
        };
        tx.settle_in(&delivery.settlement(outcome)).await?;
        tx.commit();
        Ok::<_, Failure>(())
    })
    .await;
    story.until(State::Dead).await;
    let found = story.store.find(story.id).await.unwrap().unwrap();
    assert_eq!((found.reason, found.attempts), (Some(DeadReason::Rejected), 2));
    let codes: Vec<_> = story.attempts().await.into_iter().filter_map(|a| a.code).collect();
    assert_eq!(codes, ["busy", "closed"]);
    assert_eq!(story.store.notes(), ["failed 1", "failed 2"]);
    assert!(story.store.audit(&AuditFilter::default()).await.unwrap().is_empty());
    story.relay.stop().await;
}

/// A key goes on after what was delivered and waits behind what was not, whoever settled it.
#[tokio::test(start_paused = true)]
async fn a_key_keeps_its_order() {
    let store = store();
    let mut tx = store.begin();
    let of_key = |n: usize| Message::json("usage", &n).unwrap().order_key("k");
    tx.enqueue_all((0..12).map(of_key).collect()).await.unwrap();
    tx.commit();
    let handler = |delivery: Handling<Memory>| async move {
        let n: usize = delivery.json()?;
        let mut tx = delivery.outbox().begin();
        let outcome = match (n % 4, delivery.attempt) {
            (0, 1) => Outcome::retry("busy", "not now"),
            (1, 1) => {
                tx.settle_in(&delivery.settlement(Outcome::delivered())).await?;
                return Err(oops());
            }
            _ => Outcome::delivered(),
        };
        if outcome == Outcome::delivered() {
            tx.note(&n.to_string());
        }
        tx.settle_in(&delivery.settlement(outcome)).await?;
        tx.commit();
        if n % 4 == 2 { Err(oops()) } else { Ok(()) }
    };
    let relay = Running::start(billing(&store, transactional(store.clone(), handler)));
    let handled = async {
        while store.notes().len() < 12 {
            tokio::time::sleep(SECOND).await;
        }
    };
    tokio::time::timeout(3600 * SECOND, handled)
        .await
        .expect("it does not happen");
    relay.stop().await;
    let expected: Vec<_> = (0..12).map(|n| n.to_string()).collect();
    assert_eq!(store.notes(), expected);
    assert!(store.audit(&AuditFilter::default()).await.unwrap().is_empty());
}
