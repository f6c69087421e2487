//! `examples/usage_billing`: what its service, its plugin and its dispatcher promise, on both databases.

use posthouse::{
    Admin, AnyStore, Attempt, AttemptOutcome, Claim, Claimed, DeadReason, Filter, MessageView, Settlement, State, Store,
};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};
use std::{sync::Arc, time::Duration};
use tokio::task::JoinSet;

use crate::relay::Running;
use mini_chat::{
    Basis, Chat, Ending, Finalized, NAMESPACE, TOPIC, TurnId, UsageSnapshot,
    dispatcher::{Fault, QuotaPolicy, replica},
};

#[path = "../examples/usage_billing/mini_chat/mod.rs"]
mod mini_chat;

const TENANT: &str = "acme";
const USER: &str = "ada";
const PROVIDER: &str = "resp_68f1c0ffee";

macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() { super::$name(super::Place::sqlite().await).await; })+
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let place = super::Place::postgres().await;
                let name = place.name.clone();
                super::$name(place).await;
                super::on_server(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
            })+
        }
    };
}

on_both!(
    each_ending_settles_and_leaves_one_message,
    what_is_told_is_what_the_server_knows,
    of_many_finalizers_one_wins,
    a_loser_changes_nothing,
    a_rollback_leaves_neither_debit_nor_message,
    a_refused_message_takes_the_debit_with_it,
    a_refused_debit_takes_the_message_with_it,
    a_turn_that_was_set_back_is_not_settled_again,
    replicas_bill_each_turn_once,
    what_a_dead_replica_held_is_taken_over_and_not_billed_again,
    failures_wait_longer_each_time_and_leave_their_error,
    what_always_fails_is_dead_until_somebody_replays_it,
    a_cancelled_replica_leaves_nothing_leased,
);

/// The service and its outbox, in a database of their own.
struct Place<C> {
    name: String,
    url: String,
    chat: C,
    store: Arc<dyn Store>,
    admin: Arc<dyn Admin>,
    _folder: Option<tempfile::TempDir>,
}

pub(crate) async fn on_server(sql: &str) {
    let server = std::env::var("POSTHOUSE_TEST_POSTGRES")
        .expect("POSTHOUSE_TEST_POSTGRES is not set; run ./test.sh, which starts a private server");
    let mut control = PgConnection::connect(&server).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut control).await.unwrap();
}

impl Place<mini_chat::sqlite::Service> {
    async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("chat.db").display());
        Self::open(String::new(), url, Some(folder)).await
    }
}

impl Place<mini_chat::postgres::Service> {
    async fn postgres() -> Self {
        let name = format!("chat_{}", uuid::Uuid::new_v4().simple());
        on_server(&format!("CREATE DATABASE {name}")).await;
        let server = std::env::var("POSTHOUSE_TEST_POSTGRES").unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        Self::open(name, url, None).await
    }
}

impl<C: Chat> Place<C> {
    async fn open(name: String, url: String, folder: Option<tempfile::TempDir>) -> Self {
        C::install(&url).await.unwrap();
        let any = AnyStore::open(&url).await.unwrap();
        let chat = C::open(&url).await.unwrap();
        chat.set_policy("gpt-large", 100).await.unwrap();
        Self {
            name,
            chat,
            store: any.store(),
            admin: any.admin(),
            url,
            _folder: folder,
        }
    }

    /// What somebody does to the database behind the service's back.
    async fn run(&self, sql: &str) {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        if self.name.is_empty() {
            let mut db = SqliteConnection::connect(&self.url).await.unwrap();
            sql.execute(&mut db).await.unwrap();
        } else {
            let mut db = PgConnection::connect(&self.url).await.unwrap();
            sql.execute(&mut db).await.unwrap();
        }
    }

    /// A turn that runs, with 10 tokens in and an estimate of 5 out.
    async fn running(&self, n: usize) -> TurnId {
        let id = TurnId::new(TENANT, &format!("turn-{n:03}"), "req-1");
        self.chat.begin(&id, Some(USER), 10).await.unwrap();
        self.chat.streamed(&id, 20, PROVIDER).await.unwrap();
        id
    }

    async fn win(&self, id: &TurnId, ending: Ending) -> UsageSnapshot {
        match self.chat.finalize(id, ending).await.unwrap() {
            Finalized::Won(usage, _) => usage,
            Finalized::AlreadyFinal => panic!("{id:?} was final already"),
        }
    }

    async fn ended(&self, turns: std::ops::Range<usize>) {
        for n in turns {
            let id = self.running(n).await;
            self.win(&id, Ending::Completed).await;
        }
    }

    async fn spent(&self) -> i64 {
        self.chat.spent(TENANT, USER).await.unwrap()
    }

    async fn messages(&self) -> Vec<MessageView> {
        let filter = Filter {
            oldest_first: true,
            limit: 1000,
            ..Filter::default()
        };
        self.admin.list(&filter).await.unwrap().messages
    }

    async fn claim(&self, worker: &str, lease: Duration) -> Vec<Claimed> {
        self.store.claim(&Claim::new(worker, 1000, lease)).await.unwrap()
    }

    /// What is told, read as the dispatcher would.
    async fn payloads(&self) -> Vec<Vec<u8>> {
        let claimed = self.claim("reader", Duration::from_secs(600)).await;
        claimed.into_iter().map(|c| c.delivery.payload).collect()
    }

    async fn attempts(&self, of: &MessageView) -> Vec<Attempt> {
        self.admin.attempts(of.id).await.unwrap()
    }

    fn plugin(&self, fault: Fault) -> QuotaPolicy<C> {
        QuotaPolicy::new(self.chat.clone(), fault, Arc::new(drop))
    }

    fn start(&self, name: &str, plugin: QuotaPolicy<C>) -> Running {
        Running::start(replica(self.store.clone(), name, plugin))
    }

    async fn until_all(&self, state: State) {
        let waited = async {
            while self.messages().await.iter().any(|m| m.state != state) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let hung = Duration::from_secs(120);
        tokio::time::timeout(hung, waited).await.expect("it does not happen");
    }
}

async fn each_ending_settles_and_leaves_one_message<C: Chat>(place: Place<C>) {
    let cases = [
        (Ending::Completed, Some((8, 7)), 20, (Basis::Actual, 8, 7)),
        (Ending::Failed, Some((8, 0)), 20, (Basis::Actual, 8, 0)),
        (Ending::Failed, None, 0, (Basis::Estimate, 10, 0)),
        (Ending::Cancelled, None, 21, (Basis::Estimate, 10, 6)),
        // Never more than the policy allows a turn.
        (Ending::Cancelled, None, 1_000_000, (Basis::Estimate, 10, 100)),
    ];
    let mut debited = 0;
    for (n, (ending, reported, bytes, expected)) in cases.into_iter().enumerate() {
        let id = TurnId::new(TENANT, &n.to_string(), "req-1");
        place.chat.begin(&id, Some(USER), 10).await.unwrap();
        place.chat.streamed(&id, bytes, PROVIDER).await.unwrap();
        if let Some((input, output)) = reported {
            place.chat.reported(&id, input, output).await.unwrap();
        }
        let usage = place.win(&id, ending).await;
        assert_eq!((usage.basis, usage.input_tokens, usage.output_tokens), expected);
        assert_eq!(place.chat.state(&id).await.unwrap(), ending.as_str());
        debited += usage.tokens();
        assert_eq!(place.spent().await, debited);

        let messages = place.messages().await;
        assert_eq!(messages.len(), n + 1);
        let message = messages.last().unwrap();
        assert_eq!((message.namespace.as_str(), message.topic.as_str()), (NAMESPACE, TOPIC));
        assert_eq!(message.tenant, TENANT);
        assert_eq!(message.dedupe_key, Some(format!("{TENANT}/{n}/req-1")));
        assert_eq!((message.state, message.attempts), (State::Pending, 0));
        assert_eq!((&message.worker, message.lease_until), (&None, None));
    }
}

/// The payload has these fields and no others, from the turn as the server has it: the policy with which it began, and nothing of
/// the provider's.
async fn what_is_told_is_what_the_server_knows<C: Chat>(place: Place<C>) {
    let first = place.running(1).await;
    let version = place.chat.set_policy("gpt-small", 3).await.unwrap();
    let second = TurnId::new(TENANT, "turn-002", "req-2");
    place.chat.begin(&second, None, 10).await.unwrap();
    place.chat.streamed(&second, 400, PROVIDER).await.unwrap();
    place.win(&first, Ending::Cancelled).await;
    place.win(&second, Ending::Failed).await;

    let payloads = place.payloads().await;
    let told: Vec<serde_json::Value> = payloads.iter().map(|p| serde_json::from_slice(p).unwrap()).collect();
    let with_user = serde_json::json!({
        "tenant_id": TENANT, "turn_id": "turn-001", "request_id": "req-1", "user_id": USER, "outcome": "cancelled",
        "policy_version_applied": version - 1, "effective_model": "gpt-large", "input_tokens": 10, "output_tokens": 5, "basis": "estimate",
    });
    let without = serde_json::json!({
        "tenant_id": TENANT, "turn_id": "turn-002", "request_id": "req-2", "outcome": "failed",
        "policy_version_applied": version, "effective_model": "gpt-small", "input_tokens": 10, "output_tokens": 3, "basis": "estimate",
    });
    assert_eq!(told, [with_user, without]);
    assert!(payloads.iter().all(|p| !String::from_utf8_lossy(p).contains("resp_")));
}

/// Sixteen for each of ten turns, all at once.
async fn of_many_finalizers_one_wins<C: Chat>(place: Place<C>) {
    let mut turns = Vec::new();
    for n in 0..10 {
        turns.push(place.running(n).await);
    }
    let mut racers = JoinSet::new();
    for n in 0..160 {
        let (chat, id) = (place.chat.clone(), turns[n % 10].clone());
        let ending = [Ending::Completed, Ending::Failed, Ending::Cancelled][n % 3];
        racers.spawn(async move { chat.finalize(&id, ending).await.unwrap() });
    }
    let mut won = Vec::new();
    for finalized in racers.join_all().await {
        if let Finalized::Won(usage, id) = finalized {
            won.push((usage.key(), id, usage));
        }
    }
    won.sort_by(|a, b| a.0.cmp(&b.0));
    let winners: Vec<_> = won.iter().map(|w| w.2.turn_id.as_str()).collect();
    let all: Vec<_> = turns.iter().map(|t| t.turn.as_str()).collect();
    assert_eq!(winners, all, "one for each turn");
    for (turn, (_, _, usage)) in turns.iter().zip(&won) {
        assert_eq!(place.chat.state(turn).await.unwrap(), usage.outcome.as_str());
    }
    assert_eq!(place.spent().await, won.iter().map(|w| w.2.tokens()).sum::<i64>());
    let mut told: Vec<_> = place.messages().await.iter().map(|m| m.id).collect();
    let mut ids: Vec<_> = won.iter().map(|w| w.1).collect();
    told.sort_unstable();
    ids.sort_unstable();
    assert_eq!(told, ids);
}

async fn a_loser_changes_nothing<C: Chat>(place: Place<C>) {
    let id = place.running(1).await;
    place.win(&id, Ending::Completed).await;
    let before = (place.spent().await, place.messages().await);
    for ending in [Ending::Completed, Ending::Failed, Ending::Cancelled] {
        // What comes in late is not counted either.
        place.chat.streamed(&id, 4000, PROVIDER).await.unwrap();
        place.chat.reported(&id, 4000, 4000).await.unwrap();
        assert_eq!(place.chat.finalize(&id, ending).await.unwrap(), Finalized::AlreadyFinal);
    }
    assert_eq!((place.spent().await, place.messages().await), before);
    assert_eq!(place.chat.state(&id).await.unwrap(), "completed");
}

async fn a_rollback_leaves_neither_debit_nor_message<C: Chat>(place: Place<C>) {
    let id = place.running(1).await;
    let finalized = place.chat.finalize_and_die(&id, Ending::Completed).await.unwrap();
    assert_ne!(finalized, Finalized::AlreadyFinal);
    assert_eq!((place.spent().await, place.messages().await), (0, vec![]));
    assert_eq!(place.chat.state(&id).await.unwrap(), "running");
    // Whoever comes next finds everything as it was, the dedupe key too.
    place.win(&id, Ending::Failed).await;
    assert_eq!((place.spent().await, place.messages().await.len()), (15, 1));
}

async fn a_refused_message_takes_the_debit_with_it<C: Chat>(place: Place<C>) {
    // With it, the dedupe key is longer than one may be.
    let id = TurnId::new(TENANT, "turn-001", &"r".repeat(300));
    place.chat.begin(&id, Some(USER), 10).await.unwrap();
    let error = place.chat.finalize(&id, Ending::Completed).await.unwrap_err();
    assert!(error.to_string().contains("dedupe_key"), "{error}");
    assert_eq!((place.spent().await, place.messages().await), (0, vec![]));
    assert_eq!(place.chat.state(&id).await.unwrap(), "running");
}

async fn a_refused_debit_takes_the_message_with_it<C: Chat>(place: Place<C>) {
    let id = place.running(1).await;
    place.run("ALTER TABLE minichat_quota RENAME TO away").await;
    place.chat.finalize(&id, Ending::Completed).await.unwrap_err();
    assert_eq!(place.messages().await, []);
    assert_eq!(place.chat.state(&id).await.unwrap(), "running");
    place.run("ALTER TABLE away RENAME TO minichat_quota").await;
    place.win(&id, Ending::Completed).await;
    assert_eq!((place.spent().await, place.messages().await.len()), (15, 1));
}

/// The dedupe key holds where the turn's own state has failed: the same content, and other content.
async fn a_turn_that_was_set_back_is_not_settled_again<C: Chat>(place: Place<C>) {
    let id = place.running(1).await;
    place.win(&id, Ending::Completed).await;
    for bytes in [0, 40] {
        place.run("UPDATE minichat_turns SET state = 'running'").await;
        place.chat.streamed(&id, bytes, PROVIDER).await.unwrap();
        place.chat.finalize(&id, Ending::Completed).await.unwrap_err();
        assert_eq!((place.spent().await, place.messages().await.len()), (15, 1));
    }
}

async fn replicas_bill_each_turn_once<C: Chat>(place: Place<C>) {
    place.ended(0..20).await;
    let replicas = ["A", "B", "C"].map(|name| place.start(name, place.plugin(Fault::None)));
    place.ended(20..60).await;
    place.until_all(State::Done).await;
    for replica in replicas {
        replica.stop().await;
    }
    let messages = place.messages().await;
    assert_eq!(messages.len(), 60);
    for message in &messages {
        let attempts = place.attempts(message).await;
        assert_eq!(
            attempts.len(),
            1,
            "nothing has failed, so nothing was sent twice: {attempts:?}"
        );
        assert_eq!(attempts[0].receipt.as_deref(), Some("billed 15 tokens"));
    }
    let bills = place.chat.bills(TENANT).await.unwrap();
    assert_eq!(bills.len(), 60);
    assert_eq!(bills.iter().map(|b| b.1).sum::<i64>(), place.spent().await);
}

/// It has sent one of them, and none is reported. What it reports when it comes back is refused.
async fn what_a_dead_replica_held_is_taken_over_and_not_billed_again<C: Chat>(place: Place<C>) {
    place.ended(0..3).await;
    let held = place.claim("A", Duration::from_secs(1)).await;
    assert_eq!(held.len(), 3);
    let sent: UsageSnapshot = serde_json::from_slice(&held[0].delivery.payload).unwrap();
    assert!(place.chat.book(&sent).await.unwrap());

    let other = place.start("B", place.plugin(Fault::None));
    place.until_all(State::Done).await;
    other.stop().await;
    for message in place.messages().await {
        let attempts = place.attempts(&message).await;
        let ends: Vec<_> = attempts.iter().map(|a| (a.worker.as_str(), a.outcome)).collect();
        assert_eq!(
            ends,
            [("A", AttemptOutcome::LeaseExpired), ("B", AttemptOutcome::Delivered)]
        );
        let repeated = message.id == held[0].delivery.id;
        let receipt = if repeated { "already billed" } else { "billed 15 tokens" };
        assert_eq!(attempts[1].receipt.as_deref(), Some(receipt));
    }
    let late: Vec<_> = held.iter().map(|c| Settlement::delivered(&c.lease, None)).collect();
    let verdicts = place.store.settle(&late).await.unwrap();
    assert!(verdicts.iter().all(|v| !v.is_settled()), "{verdicts:?}");
    assert_eq!(place.chat.bills(TENANT).await.unwrap().len(), 3);
}

async fn failures_wait_longer_each_time_and_leave_their_error<C: Chat>(place: Place<C>) {
    place.ended(0..1).await;
    let replica = place.start("A", place.plugin(Fault::Busy(3)));
    place.until_all(State::Done).await;
    replica.stop().await;
    let attempts = place.attempts(&place.messages().await[0]).await;
    assert_eq!(attempts.len(), 4);
    for (failed, next) in attempts.iter().zip(&attempts[1..]) {
        assert_eq!(failed.outcome, AttemptOutcome::Retry);
        assert_eq!(failed.error.as_deref(), Some("the billing system answers 503"));
        // 100 ms and twice as much each time, of which chance takes three tenths at most.
        let least = 70 << (failed.attempt - 1);
        let waited = (next.started_at.as_micros() - failed.finished_at.as_micros()) / 1000;
        assert!(waited >= least, "{waited} ms after attempt {}", failed.attempt);
    }
    assert_eq!(attempts[3].outcome, AttemptOutcome::Delivered);
}

async fn what_always_fails_is_dead_until_somebody_replays_it<C: Chat>(place: Place<C>) {
    place.ended(0..1).await;
    let mut plugin = place.plugin(Fault::Busy(2));
    plugin.retry.max_attempts = Some(2);
    let replica = place.start("A", plugin);
    place.until_all(State::Dead).await;
    let dead = &place.messages().await[0];
    assert_eq!((dead.reason, dead.attempts), (Some(DeadReason::Exhausted), 2));
    assert_eq!(dead.last_error.as_deref(), Some("the billing system answers 503"));
    // The replica, which would bill it now, does other work, and leaves it alone.
    place.ended(1..2).await;
    while place.messages().await[1].state != State::Done {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(place.messages().await[0], *dead);
    place
        .admin
        .replay(dead.id, "ops", "the billing system is back", None)
        .await
        .unwrap();
    place.until_all(State::Done).await;
    replica.stop().await;
    assert_eq!(place.chat.bills(TENANT).await.unwrap().len(), 2);
}

/// In the middle of its work. Another one goes on.
async fn a_cancelled_replica_leaves_nothing_leased<C: Chat>(place: Place<C>) {
    place.ended(0..100).await;
    let replica = place.start("A", place.plugin(Fault::None));
    while place.chat.bills(TENANT).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    replica.stop().await;
    let messages = place.messages().await;
    assert!(messages.iter().all(|m| m.state != State::Leased));
    let done = messages.iter().filter(|m| m.state == State::Done).count();
    assert_eq!(
        place.chat.bills(TENANT).await.unwrap().len(),
        done,
        "what was sent is reported"
    );
    let other = place.start("B", place.plugin(Fault::None));
    place.until_all(State::Done).await;
    other.stop().await;
    for message in place.messages().await {
        assert_eq!(place.attempts(&message).await.len(), 1);
    }
}
