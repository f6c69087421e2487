//! What must always hold between the records of the store, looked at after each case of the suite: a line leads to each message that waits for something, and
//! to nothing else; and the first of each free key can be found.

use std::collections::{BTreeMap, BTreeSet};
use surrealdb::{Surreal, engine::any::Any, types::SurrealValue, types::Value};
use uuid::Uuid;

/// A message, as far as it matters here.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Message {
    seq: i64,
    namespace: String,
    tenant: String,
    order_key: Option<String>,
    state: String,
    reason: Option<String>,
    on_dead: String,
    freed: bool,
    pos: i64,
    wake_at: Option<i64>,
    finished_at: Option<i64>,
    token: Option<Uuid>,
}

/// The deadline of a lease.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Deadline {
    token: Uuid,
}

/// What holds a key.
#[derive(Clone, Debug, Default, PartialEq, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Hold {
    leased: i64,
    blocked: Vec<i64>,
}

type Key = (String, String, String);

impl Message {
    fn key(&self) -> Option<Key> {
        Some((self.namespace.clone(), self.tenant.clone(), self.order_key.clone()?))
    }

    fn blocks(&self) -> bool {
        let ended = match self.state.as_str() {
            "dead" => self.reason.as_deref() != Some("cancelled"),
            state => state == "quarantined",
        };
        ended && !self.freed && self.on_dead == "block"
    }

    /// The lines that must lead to it, as `table[id]`.
    fn lines(&self) -> Vec<String> {
        let Self {
            namespace: n,
            tenant: t,
            seq,
            pos,
            ..
        } = self;
        let mut lines = Vec::new();
        match (self.state.as_str(), &self.order_key) {
            ("pending", Some(key)) => lines.push(line("keyed", &[text(n), text(t), text(key), pos.to_string()])),
            ("pending", None) if self.wake_at.is_none() => {
                lines.push(line("ready", &[text(n), text(t), pos.to_string()]));
            }
            ("leased", Some(key)) => lines.push(line("run", &[text(n), text(t), text(key), pos.to_string()])),
            ("dead" | "quarantined", _) => lines.push(line("dead", &[seq.to_string()])),
            _ => {}
        }
        if let ("pending", Some(at)) = (self.state.as_str(), self.wake_at) {
            lines.push(line("sched", &[text(n), at.to_string(), seq.to_string()]));
            lines.push(line(
                "sched_tenant",
                &[text(t), text(n), at.to_string(), seq.to_string()],
            ));
        }
        if let (true, Some(at)) = (self.state != "quarantined", self.finished_at) {
            lines.push(line("ended", &[text(&self.state), at.to_string(), seq.to_string()]));
        }
        lines
    }
}

fn text(text: &str) -> String {
    format!("{text:?}")
}

fn line(table: &str, id: &[String]) -> String {
    format!("{table}[{}]", id.join(", "))
}

/// Fails where something does not hold.
pub async fn check(db: &Surreal<Any>) {
    let messages: Vec<Message> = all(db, &format!("SELECT * FROM {}", of("message"))).await;
    let wanted: BTreeSet<_> = messages.iter().flat_map(Message::lines).collect();
    let mut found = BTreeSet::new();
    for table in ["ready", "sched", "sched_tenant", "keyed", "run", "dead", "ended"] {
        let ids = ids(db, table).await;
        found.extend(ids.iter().map(|id| line(table, &shown(id))));
    }
    let (lost, left): (Vec<_>, Vec<_>) = (wanted.difference(&found).collect(), found.difference(&wanted).collect());
    assert!(
        lost.is_empty() && left.is_empty(),
        "no line leads there: {lost:?}; a line leads nowhere: {left:?}"
    );
    keys(db, &messages).await;
    deadlines(db, &messages).await;
    times(db).await;
}

/// What is found by its time is there, at that time; and nothing else is found so.
async fn times(db: &Surreal<Any>) {
    for (table, by_time, at) in [
        ("dedupe", "dedupe_over", "ends_at"),
        ("ledger", "ledger_over", "expires_at"),
        ("inbox", "inbox_at", "at"),
        ("step", "step_at", "at"),
    ] {
        let wanted = format!(
            "SELECT VALUE array::concat([{at}], {ID_OF_SHARED}) FROM {} WHERE {at} != NONE AND {at} != NULL",
            of(table)
        );
        let set = |ids: Vec<Vec<Value>>| ids.iter().map(|id| shown(id).join(", ")).collect::<BTreeSet<_>>();
        assert_eq!(set(all(db, &wanted).await), set(ids(db, by_time).await), "{by_time}");
    }
}

async fn keys(db: &Surreal<Any>, messages: &[Message]) {
    let mut holds: BTreeMap<Key, Hold> = BTreeMap::new();
    let mut firsts: BTreeMap<Key, &Message> = BTreeMap::new();
    for message in messages {
        let Some(key) = message.key() else { continue };
        let hold = holds.entry(key.clone()).or_default();
        hold.leased += i64::from(message.state == "leased");
        hold.blocked.extend(message.blocks().then_some(message.pos));
        let first = firsts.get(&key).is_none_or(|first| first.pos > message.pos);
        if message.state == "pending" && first {
            firsts.insert(key, message);
        }
    }
    let kept: Vec<(Vec<Value>, Hold)> = with_ids(db, "key").await;
    let mut kept: BTreeMap<_, _> = kept
        .into_iter()
        .map(|(id, hold)| (shown(&id).join(", "), hold))
        .collect();
    let heads: BTreeSet<_> = ids(db, "head").await.iter().map(|id| shown(id).join(", ")).collect();
    for (key, mut hold) in holds {
        let (namespace, tenant, name) = &key;
        let id = [text(namespace), text(tenant), text(name)].join(", ");
        let mut known = kept.remove(&id).unwrap_or_default();
        hold.blocked.sort_unstable();
        known.blocked.sort_unstable();
        assert_eq!(known, hold, "what holds the key {key:?}");
        let Some(first) = firsts.get(&key) else { continue };
        let free = hold.leased == 0 && hold.blocked.iter().all(|at| *at > first.pos);
        let head = [text(namespace), text(tenant), first.pos.to_string(), text(name)].join(", ");
        assert!(
            !free || first.wake_at.is_some() || heads.contains(&head),
            "nothing leads to the first of {key:?}"
        );
    }
    for (key, hold) in kept {
        assert_eq!(hold, Hold::default(), "the key {key} has no message, and is held");
    }
}

/// What is leased has a deadline, of the same lease; and nothing else has a token. (A deadline without a lease is one that a handler has ended in his own transaction.)
async fn deadlines(db: &Surreal<Any>, messages: &[Message]) {
    let kept: Vec<(Vec<Value>, Deadline)> = with_ids(db, "leased").await;
    let kept: BTreeMap<_, _> = kept
        .into_iter()
        .map(|(id, deadline)| (shown(&id).join(", "), deadline.token))
        .collect();
    for message in messages {
        let leased = message.state == "leased";
        assert_eq!(message.token.is_some(), leased, "{message:?}");
        let deadline = kept.get(&message.seq.to_string()).copied();
        assert!(
            !leased || deadline == message.token,
            "{message:?} has the deadline of {deadline:?}"
        );
    }
}

async fn all<T: SurrealValue>(db: &Surreal<Any>, sql: &str) -> Vec<T> {
    let mut answer = db.query(sql).await.unwrap().check().unwrap();
    answer.take(0).unwrap()
}

/// Those that have tables of their own; the others share one, with what they are in front of their ids.
const OWN: [&str; 4] = ["message", "ready", "head", "dead"];
const ID_OF_SHARED: &str = "array::slice(record::id(id), 1)";

/// All of a kind.
fn of(kind: &str) -> String {
    match OWN.contains(&kind) {
        true => format!("posthouse_{kind}"),
        false => format!("posthouse_record:['{kind}']..=['{kind}', {{}}]"),
    }
}

async fn ids(db: &Surreal<Any>, kind: &str) -> Vec<Vec<Value>> {
    let id = if OWN.contains(&kind) {
        "record::id(id)"
    } else {
        ID_OF_SHARED
    };
    all(db, &format!("SELECT VALUE {id} FROM {}", of(kind))).await
}

async fn with_ids<T: SurrealValue>(db: &Surreal<Any>, kind: &str) -> Vec<(Vec<Value>, T)> {
    let ids = ids(db, kind).await;
    let records: Vec<T> = all(db, &format!("SELECT * FROM {}", of(kind))).await;
    assert_eq!(ids.len(), records.len());
    ids.into_iter().zip(records).collect()
}

/// The parts of an id, as people read them.
fn shown(id: &[Value]) -> Vec<String> {
    let part = |part: &Value| match part {
        Value::String(word) => text(word),
        Value::Number(number) => number.to_int().unwrap().to_string(),
        other => format!("{other:?}"),
    };
    id.iter().map(part).collect()
}
