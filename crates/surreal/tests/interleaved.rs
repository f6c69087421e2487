//! Two verbs at once, each in the midst of the other: what comes out is what would have, had they been one after the other.
//!
//! The second is done between the last word of the first and its commit, where the first cannot know of it any more. Either both go on as if the first had
//! been alone, or the first is told at its commit and runs again. Each pair is compared with both of its orders.

use posthouse_core::{
    Admin, Error, Filter, Lease, Message, MessageId, OnDead, Outcome, PruneStates, Pruned, RetryPolicy, SagaId,
    Settlement, Store, Verdict,
    ledger::{Answer, Begun, Conclusion, EntryKey, Fingerprint, Hold, Keep},
    saga::{
        self, Declared, Definition, Report, Start,
        drive::{self, Decided},
    },
};
use posthouse_surreal::{Options, SurrealDb};
use posthouse_testkit::Fixture;
use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use surrealdb::types::Value;

use crate::fixture::{SurrealFixture, fresh};

/// Of a message that is not there any more.
const GONE: MessageId = MessageId(uuid::Uuid::from_u128(7));
const LEASE: Duration = Duration::from_secs(15);

/// What can be done to what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Claim,
    Deliver,
    DeliverInOwn,
    Fail,
    Release,
    Reject,
    Renew,
    /// A renewal that looked at the clock before the deadline.
    RenewInTime,
    Expire,
    DeliverBound,
    Clear,
    ExpireBound,
    QuarantineNext,
    CancelNext,
    CancelDelayed,
    ResolveDelayed,
    QuarantineDelayed,
    ReplayKeyed,
    EnqueueDelayed,
    Leave,
    CancelLeft,
    ReplayDead,
    DiscardDead,
    ResolveDead,
    ReplayBlock,
    DiscardBlock,
    Prune,
    /// Also what was written a moment ago.
    PruneAll,
    Enqueue,
    EnqueueSame,
    /// Of the key whose only message has ended long ago.
    EnqueueOld,
    StepDone,
    StepRejected,
    PauseSaga,
    QuarantineSaga,
    CompensateSaga,
    Begin,
    Conclude,
    Once,
    DoOnce,
    UndoOnce,
}

use Verb::*;

/// Of the key whose first is leased.
const KEY: [Verb; 10] = [
    Claim,
    Deliver,
    DeliverInOwn,
    Fail,
    Release,
    Reject,
    Renew,
    QuarantineNext,
    CancelNext,
    Enqueue,
];

/// Of a key with a handler, behind which so many wait that their hints are taken away.
const CROWD: [Verb; 8] = [Claim, Deliver, DeliverInOwn, Fail, Release, Reject, CancelNext, Enqueue];

/// Of a saga whose first step is under way.
const SAGA: [Verb; 6] = [Claim, StepDone, StepRejected, PauseSaga, QuarantineSaga, CompensateSaga];

/// Of those that are dead.
const DEAD: [Verb; 9] = [
    Claim,
    ReplayDead,
    DiscardDead,
    ResolveDead,
    ReplayBlock,
    DiscardBlock,
    Prune,
    EnqueueSame,
    EnqueueOld,
];

/// Of a key of which one is dead, and one waits for its time.
const DELAYED: [Verb; 6] = [
    Claim,
    CancelDelayed,
    ResolveDelayed,
    QuarantineDelayed,
    ReplayKeyed,
    EnqueueDelayed,
];

/// Of the ledger.
const LEDGER: [Verb; 7] = [Claim, DeliverBound, Clear, Begin, Conclude, Leave, CancelLeft];

/// Of those who are told something.
const INBOX: [Verb; 4] = [Once, DoOnce, UndoOnce, PruneAll];

/// When they have run out.
const LATE: [Verb; 11] = [
    Claim,
    Deliver,
    DeliverInOwn,
    Renew,
    RenewInTime,
    Expire,
    ExpireBound,
    Clear,
    Begin,
    Conclude,
    Enqueue,
];

/// What is there at first.
#[derive(Clone)]
struct Scene {
    fx: Arc<SurrealFixture>,
    /// The first of the key `k`, which somebody has.
    lease: Lease,
    /// One under an entry of the ledger, which somebody has.
    bound: Lease,
    /// The second of the key `k`.
    next: MessageId,
    dead: MessageId,
    /// Of the key `d`: one that is dead, and one that waits for its time.
    keyed: MessageId,
    delayed: MessageId,
    /// One that waits, under the entry that somebody holds.
    left: MessageId,
    /// One that is dead and blocks the key `b`, behind which another waits.
    block: MessageId,
    hold: Hold,
    saga: SagaId,
    /// The first step of the saga, which somebody has.
    step: Lease,
}

fn message(topic: &str) -> Message {
    Message::bytes(topic, "text/plain", topic.as_bytes().to_vec())
}

fn entry(key: &str) -> EntryKey {
    EntryKey::new("orders", key)
}

fn print() -> Fingerprint {
    Fingerprint::of_bytes(b"once")
}

fn ask(key: &str) -> posthouse_core::ledger::Begin {
    posthouse_core::ledger::Begin::new(entry(key), print()).lease(LEASE)
}

/// A step that can be undone, and another.
fn trip() -> Definition {
    let declared: Declared = serde_json::from_value(serde_json::json!({ "name": "trip", "version": 1, "steps": [
        { "name": "flight", "action_uri": "fn:flight", "compensate_uri": "fn:flight/undo", "idempotent": true },
        { "name": "hotel", "action_uri": "fn:hotel", "idempotent": true },
    ] }))
    .unwrap();
    declared.compile().unwrap()
}

impl Scene {
    async fn set() -> Self {
        let fx = fresh().await;
        let store = fx.open().await;
        let one = |message: Message| {
            let store = store.clone();
            async move { store.enqueue_now(vec![message]).await.unwrap()[0].id() }
        };
        let take = |topic: &'static str| {
            let store = store.clone();
            async move {
                let granted = store.claim(&claim("holder", 1)).await.unwrap();
                assert_eq!(granted[0].delivery.topic, topic);
                granted[0].lease.clone()
            }
        };
        // Ended long ago, for whoever cleans up.
        one(message("old").order_key("p")).await;
        let old = take("old").await;
        store.settle(&[Settlement::delivered(&old, None)]).await.unwrap();
        fx.advance(Duration::from_secs(3600)).await;
        let dead = one(message("dead").dedupe_key("same")).await;
        let lease = take("dead").await;
        store.settle(&[rejected(&lease)]).await.unwrap();
        let keyed = one(message("keyed").order_key("d")).await;
        let lease = take("keyed").await;
        store.settle(&[rejected(&lease)]).await.unwrap();
        let delayed = one(message("delayed").order_key("d").delay(Duration::from_secs(7200))).await;
        let block = one(message("block").order_key("b").on_dead(OnDead::Block)).await;
        let lease = take("block").await;
        store.settle(&[rejected(&lease)]).await.unwrap();
        one(message("behind").order_key("b")).await;
        one(message("bound").ledger("orders", "bound", print()).max_attempts(1)).await;
        let bound = take("bound").await;
        one(message("first").order_key("k")).await;
        let lease = take("first").await;
        let next = one(message("next").order_key("k").dedupe_key("next")).await;
        let start = Start::new(SagaId(uuid::Uuid::now_v7()), &trip(), "k", &"Rome").unwrap();
        let saga = store.start_now(start).await.unwrap().id();
        let step = take("fn:flight").await;
        one(message("free")).await;
        let Begun::Acquired(hold) = store.begin(&ask("held")).await.unwrap() else {
            panic!("it is held already");
        };
        let left = message("left").ledger("orders", "held", print());
        let left = one(left.delay(Duration::from_secs(7200))).await;
        Self {
            fx: Arc::new(fx),
            lease,
            bound,
            next,
            dead,
            keyed,
            delayed,
            left,
            block,
            hold,
            saga,
            step,
        }
    }

    /// So many more of the key `k`, each with a hint of its own.
    async fn crowd(&self) {
        let store = self.fx.open().await;
        for _ in 0..25 {
            store.enqueue_now(vec![message("crowd").order_key("k")]).await.unwrap();
        }
    }

    /// Does it, and tells what was answered.
    async fn does(&self, verb: Verb, store: &SurrealDb) -> String {
        let by = ("operator", "by hand");
        match verb {
            Claim => granted(store.claim(&claim("other", 10)).await),
            Deliver => said(
                store
                    .settle(&[Settlement::delivered(&self.lease, Some("receipt"))])
                    .await,
            ),
            Fail => said(store.settle(&[failed(&self.lease)]).await),
            Release => said(store.settle(&[Settlement::released(&self.lease, Duration::ZERO)]).await),
            Reject => said(store.settle(&[rejected(&self.lease)]).await),
            Renew => said(store.renew(std::slice::from_ref(&self.lease), LEASE).await),
            RenewInTime => {
                self.wind(-3600).await;
                let renewed = store.renew(std::slice::from_ref(&self.lease), LEASE * 1000).await;
                self.wind(3600).await;
                said(renewed)
            }
            Expire => said(store.settle(&[Settlement::expired(&self.lease)]).await),
            ExpireBound => said(store.settle(&[Settlement::expired(&self.bound)]).await),
            DeliverBound => said(store.settle(&[Settlement::delivered(&self.bound, None)]).await),
            Clear => said(store.clear(std::slice::from_ref(&self.bound)).await),
            QuarantineNext => said(store.quarantine(self.next, by.0, by.1).await),
            CancelNext => said(store.cancel(self.next, by.0, by.1).await),
            CancelDelayed => said(store.cancel(self.delayed, by.0, by.1).await),
            ResolveDelayed => said(store.resolve(self.delayed, by.0, by.1, "").await),
            QuarantineDelayed => said(store.quarantine(self.delayed, by.0, by.1).await),
            ReplayKeyed => said(store.replay(self.keyed, by.0, by.1, None).await),
            EnqueueDelayed => enqueued(store.enqueue_now(vec![message("later").order_key("d")]).await),
            CancelLeft => said(store.cancel(self.left, by.0, by.1).await),
            ReplayDead => said(store.replay(self.dead, by.0, by.1, None).await),
            DiscardDead => said(store.discard(self.dead, by.0, by.1).await),
            ResolveDead => said(store.resolve(self.dead, by.0, by.1, "").await),
            ReplayBlock => said(store.replay(self.block, by.0, by.1, None).await),
            DiscardBlock => said(store.discard(self.block, by.0, by.1).await),
            Prune => said(self.prune(store, Duration::from_secs(60)).await),
            PruneAll => said(self.prune(store, Duration::ZERO).await),
            Enqueue => enqueued(store.enqueue_now(vec![message("third").order_key("k")]).await),
            EnqueueSame => enqueued(store.enqueue_now(vec![message("dead").dedupe_key("same")]).await),
            EnqueueOld => enqueued(store.enqueue_now(vec![message("again").order_key("p")]).await),
            StepDone => {
                self.step_ends(Outcome::answered(Answer::json(&1).unwrap()), store)
                    .await
            }
            StepRejected => self.step_ends(Outcome::reject("no", "never"), store).await,
            PauseSaga => self.asks(saga::Verb::Pause, store).await,
            QuarantineSaga => self.asks(saga::Verb::Quarantine, store).await,
            CompensateSaga => self.asks(saga::Verb::Compensate { past_pivot: false }, store).await,
            Begin => match store.begin(&ask("bound")).await {
                Ok(Begun::Acquired(_)) => "acquired".to_owned(),
                other => said(other),
            },
            Conclude => {
                let end = Conclusion::Succeeded(Answer::bytes("done").kept(Keep::default()));
                said(store.conclude(&self.hold, &end).await)
            }
            DeliverInOwn | Once | DoOnce | UndoOnce | Leave => self.in_own(verb, store).await,
        }
    }

    /// The end of the saga's step, decided anew for as long as the saga is another than it was decided on.
    async fn step_ends(&self, outcome: Outcome, store: &SurrealDb) -> String {
        let report = Report::Sent(outcome);
        // Ends: nobody else comes in between the second time.
        loop {
            let ended = vec![(&self.step, &report, 0.5)];
            let decided = drive::settlements(store, "holder", ended).await.unwrap().remove(0);
            let Decided::Settle(settlement) = decided else {
                return format!("{decided:?}");
            };
            match store.settle(&[*settlement]).await.unwrap().remove(0) {
                Verdict::Stale => {}
                verdict => return said(Ok(verdict)),
            }
        }
    }

    /// Removes all that ended. The number of the audit row is another each time.
    async fn prune(&self, store: &SurrealDb, older_than: Duration) -> Result<Pruned, Error> {
        let prune = posthouse_core::Prune::done(older_than, 100, "operator").states(PruneStates::All);
        let pruned = store.prune(&prune).await?;
        Ok(Pruned { audit: None, ..pruned })
    }

    async fn asks(&self, verb: saga::Verb, store: &SurrealDb) -> String {
        let told = drive::operate(store, self.saga, &verb, "operator", "by hand").await;
        said(told.map(drop))
    }

    /// In an application's own transaction, which is run again when it is told of a conflict.
    async fn in_own(&self, verb: Verb, store: &SurrealDb) -> String {
        let (outbox, settlement) = (store.outbox(), Settlement::delivered(&self.lease, Some("receipt")));
        let step = ("airline", "saga/flight#1");
        // Ends: nobody else comes in between the second time.
        loop {
            let tx = store.database().begin().await.unwrap();
            let answer = match verb {
                Leave => said(outbox.leave_in(&tx, &self.hold, self.left).await),
                Once => said(outbox.once(&tx, "consumer", GONE).await),
                DoOnce => said(outbox.do_once(&tx, step.0, step.1).await),
                UndoOnce => said(outbox.undo_once(&tx, step.0, step.1).await),
                _ => said(outbox.settle_in(&tx, &settlement).await.map(|one| vec![one])),
            };
            match store.database().commit(tx).await {
                Ok(()) => return answer,
                Err(error) => assert!(matches!(error, Error::Contention(_)), "{error:?}"),
            }
        }
    }

    /// Moves the clock, also back.
    async fn wind(&self, seconds: i64) {
        let moved = self.fx.db.client().query("UPDATE test_clock:now SET now += $by");
        moved.bind(("by", seconds * 1_000_000)).await.unwrap().check().unwrap();
    }

    /// How everything stands in the end.
    async fn stands(&self) -> String {
        let admin = self.fx.admin().await;
        let mut lines = Vec::new();
        for message in admin.list(&Filter::default()).await.unwrap().messages {
            let attempts = admin.attempts(message.id).await.unwrap();
            let attempts: Vec<_> = attempts
                .iter()
                .map(|a| (a.epoch, a.attempt, a.outcome, &a.worker))
                .collect();
            lines.push(format!(
                "{} {} {:?} attempts {} epoch {} generation {} {:?} {attempts:?}",
                message.topic,
                message.state,
                message.reason,
                message.attempts,
                message.epoch,
                message.generation,
                message.worker
            ));
        }
        let saga = drive::load(&self.fx.open().await, self.saga).await.unwrap().row;
        let log = admin.saga_log(self.saga, 0, 100).await.unwrap();
        let log: Vec<_> = log.iter().map(|line| (&line.actor, &line.what, &line.step)).collect();
        lines.push(format!(
            "saga {:?} {:?} paused {} revision {} {log:?}",
            saga.state, saga.reason, saga.paused, saga.revision
        ));
        for key in ["bound", "held"] {
            let found = admin.entry(&entry(key)).await.unwrap();
            lines.push(format!(
                "{key}: {:?}",
                found.map(|found| (found.status, found.message.is_some()))
            ));
        }
        let audit = admin.audit(&Default::default()).await.unwrap();
        lines.extend(
            audit
                .into_iter()
                .map(|line| format!("{} by {}", line.action, line.actor)),
        );
        lines.sort();
        self.fx.check().await;
        lines.join("\n")
    }
}

fn claim(worker: &str, batch: u32) -> posthouse_core::Claim {
    posthouse_core::Claim::new(worker, batch, LEASE)
}

fn failed(lease: &Lease) -> Settlement {
    Settlement::of(
        lease,
        Outcome::retry("busy", "come again"),
        &RetryPolicy::default(),
        0.5,
    )
}

fn rejected(lease: &Lease) -> Settlement {
    Settlement::of(lease, Outcome::reject("no", "never"), &RetryPolicy::default(), 0.5)
}

/// An answer, without what is different each time.
fn said<T: Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(Error::Contention(source)) => panic!("a conflict was told to the caller: {source}"),
        Err(error) => format!("{}", error.code()),
    }
}

fn granted(claimed: Result<Vec<posthouse_core::Claimed>, Error>) -> String {
    let mut topics: Vec<_> = claimed.unwrap().into_iter().map(|one| one.delivery.topic).collect();
    topics.sort();
    format!("{topics:?}")
}

fn enqueued(answer: Result<Vec<posthouse_core::Enqueued>, Error>) -> String {
    match answer {
        Ok(all) => format!("{}", matches!(all[0], posthouse_core::Enqueued::New(_))),
        Err(error) => format!("{}", error.code()),
    }
}

/// What came out: both answers, and how everything stands.
type Came = (String, String, String);

async fn in_turn(stage: &Stage, first: Verb, second: Verb) -> Came {
    let scene = stage.set().await;
    let store = scene.fx.open().await;
    let one = scene.does(first, &store).await;
    let other = scene.does(second, &store).await;
    (one, other, scene.stands().await)
}

/// A scene that was played once, and all of its records: to put them back takes less time than to play it again.
struct Stage {
    scene: Scene,
    records: Vec<(String, Vec<Value>)>,
}

/// When it is played.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Setting {
    Early,
    /// When leases have run out.
    Late,
    /// When many more wait behind the first of the key `k`.
    Crowded,
}

impl Stage {
    async fn new(setting: Setting) -> Self {
        let scene = Scene::set().await;
        match setting {
            Setting::Early => {}
            Setting::Late => scene.fx.advance(LEASE + Duration::from_secs(1)).await,
            Setting::Crowded => scene.crowd().await,
        }
        let records = scene.fx.records().await;
        Self { scene, records }
    }

    async fn set(&self) -> Scene {
        self.scene.fx.put_back(&self.records).await;
        self.scene.clone()
    }
}

/// The second comes in between, before this one of the commits of the first.
async fn between(stage: &Stage, first: Verb, second: Verb, before: usize) -> Came {
    let scene = Arc::new(stage.set().await);
    let (commits, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
    let hook = {
        let (scene, commits, answer) = (scene.clone(), commits.clone(), answer.clone());
        move || {
            let (scene, commits, answer) = (scene.clone(), commits.clone(), answer.clone());
            Box::pin(async move {
                if commits.fetch_add(1, Ordering::SeqCst) + 1 == before {
                    let store = scene.fx.open().await;
                    let said = scene.does(second, &store).await;
                    *answer.lock().unwrap() = Some(said);
                }
            }) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
        }
    };
    let db = scene.fx.db.before_commit(hook);
    let store = SurrealDb::open(db, Options::default()).await.unwrap();
    let one = scene.does(first, &store).await;
    let other = answer.lock().unwrap().take();
    let other = match other {
        Some(said) => said,
        // The first had not so much to commit: then it is over, and the second comes after it.
        None => scene.does(second, &scene.fx.open().await).await,
    };
    (one, other, scene.stands().await)
}

/// What is done in several transactions: each has a moment before its commit.
const fn commits(verb: Verb) -> usize {
    match verb {
        // The producers' turns are forgotten after all else.
        Prune | PruneAll => 2,
        _ => 1,
    }
}

async fn all_pairs(verbs: &[Verb], setting: Setting) {
    let stage = Stage::new(setting).await;
    let mut turns = BTreeMap::new();
    for (a, first) in verbs.iter().enumerate() {
        for (b, second) in verbs.iter().enumerate() {
            turns.insert((a, b), in_turn(&stage, *first, *second).await);
        }
    }
    let mut wrong = Vec::new();
    // While it goes on, it is earlier for everybody: it comes in between, and nothing between it.
    for (a, first) in verbs.iter().enumerate().filter(|(_, first)| **first != RenewInTime) {
        for (b, second) in verbs.iter().enumerate() {
            let (one, other, stands) = turns[&(b, a)].clone();
            let turned = (other, one, stands);
            let wanted = &turns[&(a, b)];
            for before in 1..=commits(*first) {
                let came = between(&stage, *first, *second, before).await;
                if came != *wanted && came != turned {
                    wrong.push(format!(
                        "{first:?} with {second:?} before its commit {before}: {came:#?}\nin turn: {wanted:#?}\nor: {turned:#?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} pairs:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn two_at_a_key_at_once_are_as_one_after_the_other() {
    all_pairs(&KEY, Setting::Early).await;
}

#[tokio::test]
async fn two_at_a_key_with_a_crowd_at_once_are_as_one_after_the_other() {
    all_pairs(&CROWD, Setting::Crowded).await;
}

#[tokio::test]
async fn two_at_a_saga_at_once_are_as_one_after_the_other() {
    all_pairs(&SAGA, Setting::Early).await;
}

#[tokio::test]
async fn two_at_the_dead_at_once_are_as_one_after_the_other() {
    all_pairs(&DEAD, Setting::Early).await;
}

#[tokio::test]
async fn two_at_a_key_that_waits_at_once_are_as_one_after_the_other() {
    all_pairs(&DELAYED, Setting::Early).await;
}

#[tokio::test]
async fn two_at_the_ledger_or_an_inbox_at_once_are_as_one_after_the_other() {
    all_pairs(&LEDGER, Setting::Early).await;
    all_pairs(&INBOX, Setting::Early).await;
}

#[tokio::test]
async fn two_past_the_deadline_at_once_are_as_one_after_the_other() {
    all_pairs(&LATE, Setting::Late).await;
}
