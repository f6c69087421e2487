//! What facts about a store mean: each check answers with one line or more, and says what to do. No store is asked here.

use posthouse::{
    Breaker, Count, Counts, DestinationView, Durability, MessageId, MessageView, RelayView, State,
    condition::{Condition, Holder, HolderKind},
    explain::route_for,
    topic::shown,
};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

use crate::output::{size, took};

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// It is as it should be.
    Ok,
    /// Somebody should look at it.
    Warn,
    /// It does not work.
    Fail,
}

/// One line of the answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    pub level: Level,
    /// What was looked at.
    pub check: &'static str,
    /// The store's name, where there are several.
    pub store: Option<String>,
    pub found: String,
    /// What to do about it.
    pub todo: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            level: Level::Ok,
            check,
            store: None,
            found: found.into(),
            todo: None,
        }
    }

    pub fn warn(check: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            todo: Some(todo.into()),
            ..Self::ok(check, found)
        }
    }

    pub fn fail(check: &'static str, found: impl Into<String>, todo: Option<String>) -> Self {
        Self {
            level: Level::Fail,
            todo,
            ..Self::ok(check, found)
        }
    }
}

/// What was learnt about a store that could be opened.
#[derive(Clone, Debug)]
pub struct Facts {
    pub condition: Condition,
    pub counts: Counts,
    pub relays: Vec<RelayView>,
    pub destinations: Vec<DestinationView>,
    /// The oldest that wait, at most [`SAMPLE`].
    pub waiting: Vec<MessageView>,
    /// Whether these are all that wait.
    pub waiting_whole: bool,
    /// Topics that relays have claimed messages of, and that no live relay has a route for.
    pub unrouted: Vec<NoRoute>,
    /// Whether relays have met more of them than they list.
    pub unrouted_more: bool,
    /// The newest that are dead, at most [`SAMPLE`].
    pub dead: Vec<MessageView>,
    /// Sagas that wait for a person, at most [`SAMPLE`].
    pub held_sagas: usize,
    /// One that waits, and the dead or quarantined one that it waits behind.
    pub blocked: Option<(MessageId, MessageId)>,
    /// How far the store's clock is ahead of this machine's, in seconds, and how sure that is.
    pub ahead: Option<(f64, f64)>,
    /// The port that the URL names, where it names a server.
    pub asked_port: Option<u16>,
    /// Whether a URL past any pooler is configured.
    pub has_direct: bool,
}

/// A topic without a route, and a message of it that waits. None where that was not asked.
#[derive(Clone, Debug)]
pub struct NoRoute {
    pub topic: String,
    pub example: Option<MessageId>,
}

/// How many messages are looked at, for examples.
pub const SAMPLE: u32 = 1000;
/// Clocks may differ so much, in seconds.
const CLOCKS: f64 = 2.0;
/// What is due is sent sooner than this.
const LATE: Duration = Duration::from_secs(60);
/// Where the time is not known, so many transactions are long.
const MANY_TRANSACTIONS: i64 = 100_000;
/// A log that is larger is one that cannot be written back.
const LARGE_LOG: u64 = 64 << 20;

/// Everything that the facts say. `old` is the age from which on a transaction is worth a line.
pub fn findings(facts: &Facts, old: Duration) -> Vec<Finding> {
    let mut all = vec![durability(&facts.condition)];
    all.extend(clock(facts.ahead));
    all.extend(pooler(facts));
    all.extend(cleaning(&facts.condition, old));
    all.push(relays(&facts.relays));
    all.push(waiting(&facts.counts, &facts.waiting));
    all.push(leases(&facts.counts));
    all.push(keys(&facts.counts, facts.blocked));
    all.push(routes(facts));
    all.extend(destinations(&facts.destinations));
    all.push(dead(&facts.counts, &facts.dead));
    all.push(sagas(facts.held_sagas));
    all
}

fn durability(condition: &Condition) -> Finding {
    let listed = |risky: bool| {
        let settings = condition.settings.iter().filter(|s| !risky || s.risk.is_some());
        let words: Vec<_> = settings.map(|s| format!("{} {}", s.name, s.value)).collect();
        words.join(", ")
    };
    if condition.durability == Some(Durability::Server) {
        return Finding::ok(
            "durability",
            "what a commit survives is up to the settings of the server, which it does not tell",
        );
    }
    // The gravest comes last.
    match condition.settings.iter().filter_map(|s| s.risk).next_back() {
        None => Finding::ok(
            "durability",
            format!("a commit survives a crash of the machine ({})", listed(false)),
        ),
        Some(risk) => Finding::warn(
            "durability",
            format!("{}: {risk}", listed(true)),
            condition.mend.unwrap_or(
                "switch it on, for the roles that enqueue and relay at least; Posthouse promises no more than the database keeps",
            ),
        ),
    }
}

fn clock(ahead: Option<(f64, f64)>) -> Option<Finding> {
    let (ahead, unsure) = ahead?;
    if ahead.abs() - unsure <= CLOCKS {
        return Some(Finding::ok("clock", "this machine and the store agree on the time"));
    }
    let word = if ahead > 0.0 { "ahead of" } else { "behind" };
    Some(Finding::warn(
        "clock",
        format!("the store's clock is {:.1} s {word} this machine's", ahead.abs()),
        "synchronise both (NTP). Leases are judged by the store's clock alone, and are safe; what is off: --since and --until, ages on \
         this screen, and the time in signatures, which receivers refuse when it is minutes off",
    ))
}

fn pooler(facts: &Facts) -> Option<Finding> {
    let asked = facts.asked_port?;
    if facts.has_direct || facts.condition.port == Some(asked) {
        return None;
    }
    let reached = facts
        .condition
        .port
        .map_or_else(|| "by a local socket".to_owned(), |port| format!("at its port {port}"));
    Some(Finding::warn(
        "pooler",
        format!("the URL names port {asked}, and the server was reached {reached}: something is in between"),
        "if it is a pooler in transaction mode, relays are not woken, and poll: set store.direct_url to a URL past it (to the same one, if \
         only a port is mapped)",
    ))
}

fn cleaning(condition: &Condition, old: Duration) -> Vec<Finding> {
    if let Some(log) = condition.log_bytes.filter(|bytes| *bytes > LARGE_LOG) {
        return vec![Finding::warn(
            "cleaning",
            format!("the log beside the file has {}", size(log)),
            "a reader that stays in one transaction keeps it from being written back, or a burst of writes made it grow: end long \
             reads, then run PRAGMA wal_checkpoint(TRUNCATE)",
        )];
    }
    let is_old = |holder: &&Holder| match holder.seconds {
        Some(seconds) => seconds >= old.as_secs_f64(),
        None => holder.transactions >= MANY_TRANSACTIONS,
    };
    let mut found: Vec<_> = condition.holders.iter().filter(is_old).map(held_by).collect();
    if !condition.sees_all {
        found.push(Finding::warn(
            "cleaning",
            "this role may not see since when others have been in their transactions; only very long ones are told",
            "ask as a role that may: GRANT pg_read_all_stats TO it",
        ));
    }
    if found.is_empty() {
        found.push(Finding::ok("cleaning", "nothing keeps the database from cleaning up"));
    }
    found
}

fn held_by(holder: &Holder) -> Finding {
    let pid = holder.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    let age = match holder.seconds {
        Some(seconds) => format!("for {}", took(Duration::from_secs_f64(seconds.max(0.0)))),
        None => format!("for {} transactions", holder.transactions),
    };
    let name = &holder.name;
    let (what, todo) = match holder.kind {
        HolderKind::Session => {
            let end = match holder.pid {
                Some(pid) => format!("SELECT pg_terminate_backend({pid})"),
                None => "pg_terminate_backend".to_owned(),
            };
            (
                format!("a session of {name}{pid}"),
                format!("let it commit or roll back, or end it: {end}"),
            )
        }
        HolderKind::Prepared => (
            format!("the prepared transaction {name}"),
            format!("decide about it: COMMIT PREPARED or ROLLBACK PREPARED '{name}'"),
        ),
        HolderKind::Slot => (
            format!("the replication slot {name}{pid}"),
            format!("start its reader, or remove it: SELECT pg_drop_replication_slot('{name}')"),
        ),
        HolderKind::Standby => (
            format!("the standby {name}{pid}"),
            "look for a long query there, or switch hot_standby_feedback off on it".to_owned(),
        ),
    };
    let state = if holder.state.is_empty() {
        String::new()
    } else {
        format!(", {}", holder.state)
    };
    Finding::warn(
        "cleaning",
        format!("{what} has kept rows from being vacuumed {age}{state}: tables grow, and claims get slower"),
        todo,
    )
}

fn relays(relays: &[RelayView]) -> Finding {
    let live: Vec<_> = relays
        .iter()
        .filter(|r| r.live)
        .map(|r| r.relay.name.as_str())
        .collect();
    if live.is_empty() {
        return Finding::warn(
            "relays",
            "no relay is running",
            "start one: posthouse relay; unless workers in plain SQL do the work, which tell nothing",
        );
    }
    let more = if live.len() > 5 { ", ..." } else { "" };
    let names = live.iter().take(5).copied().collect::<Vec<_>>().join(", ");
    Finding::ok("relays", format!("{} running: {names}{more}", live.len()))
}

fn waiting(counts: &Counts, waiting: &[MessageView]) -> Finding {
    let late = counts.now.zip(counts.oldest_due).map(|(now, due)| now.since(due));
    let Some(late) = late.filter(|late| *late >= LATE) else {
        return Finding::ok("backlog", "what is due is sent soon");
    };
    let oldest = waiting.iter().min_by_key(|message| message.due_at);
    let todo = match oldest {
        Some(message) => format!("ask why: posthouse messages explain {}", message.id),
        None => "look: posthouse messages list --state pending".to_owned(),
    };
    Finding::warn(
        "backlog",
        format!("the oldest that is due has waited for {}", took(late)),
        todo,
    )
}

fn leases(counts: &Counts) -> Finding {
    match counts.expired {
        Count { value: 0, exact } => Finding::ok("leases", none_seen("none ran out", exact)),
        count => Finding::warn(
            "leases",
            format!(
                "{} ran out and {} not taken back yet",
                counted(count, "lease"),
                if count == Count::exact(1) { "was" } else { "were" }
            ),
            "a relay that is running takes them back within seconds; without one: posthouse repair",
        ),
    }
}

fn keys(counts: &Counts, blocked: Option<(MessageId, MessageId)>) -> Finding {
    if let Count { value: 0, exact } = counts.blocked_keys {
        return Finding::ok("keys", none_seen("none is blocked", exact));
    }
    let todo = match blocked {
        Some((waits, by)) => format!(
            "replay, resolve or discard {by}, which {waits} waits behind; to ask about another: posthouse messages explain ID"
        ),
        None => {
            "find what waits: posthouse messages list --state pending, and posthouse messages explain ID".to_owned()
        }
    };
    Finding::warn(
        "keys",
        format!(
            "a dead or quarantined message blocks {}",
            counted(counts.blocked_keys, "order key")
        ),
        todo,
    )
}

/// Topics without a route, from two sources. Relays report the topics of messages that they have claimed; the oldest pending messages may
/// not have been claimed yet.
fn routes(facts: &Facts) -> Finding {
    let live: Vec<_> = facts.relays.iter().filter(|r| r.live).collect();
    if live.is_empty() {
        return Finding::ok("routes", "not looked at, because no relay is running");
    }
    let mut without: BTreeMap<&str, (u64, Option<MessageId>)> = BTreeMap::new();
    for one in &facts.unrouted {
        without.insert(&one.topic, (0, one.example));
    }
    for message in &facts.waiting {
        let served = |r: &&RelayView| r.relay.serves(&message.namespace, &message.topic).is_some();
        if !live.iter().any(served) {
            let found = without.entry(&message.topic).or_insert((0, None));
            *found = (found.0 + 1, Some(found.1.unwrap_or(message.id)));
        }
    }
    let Some((first, _)) = without.first_key_value() else {
        return no_topic_waits(facts);
    };
    let topics = without.iter().take(5).map(|(topic, (n, _))| match n {
        0 => shown(topic).into_owned(),
        n => format!("{} ({n}{})", shown(topic), if facts.waiting_whole { "" } else { "+" }),
    });
    let topics: Vec<_> = topics.collect();
    let more = if without.len() > 5 || facts.unrouted_more {
        ", ..."
    } else {
        ""
    };
    let example = match without.values().find_map(|(_, example)| *example) {
        Some(example) => format!("; an example: posthouse messages explain {example}"),
        None => String::new(),
    };
    Finding::warn(
        "routes",
        format!(
            "no relay that is running has a route for {}{more}{}",
            topics.join(", "),
            if facts.waiting_whole { "" } else { LOOKED_AT }
        ),
        match first.starts_with("http:") || first.starts_with("fn:") {
            true => format!("{}{example}", route_for(first)),
            false => format!("add a [[route]] to the relay's configuration{example}"),
        },
    )
}

/// The limits of this check, when more messages wait than it reads.
const LOOKED_AT: &str = "; looked at the oldest 1,000 that wait, and at the topics that relays have claimed, not at what no relay has claimed yet";

fn no_topic_waits(facts: &Facts) -> Finding {
    match (facts.waiting_whole, facts.unrouted_more) {
        (true, _) => Finding::ok("routes", "no topic waits for one"),
        (false, false) => Finding::ok("routes", format!("no topic is known to wait for one{LOOKED_AT}")),
        (false, true) => Finding::warn(
            "routes",
            format!("relays have claimed messages of more topics without a route than they list{LOOKED_AT}"),
            "look at the log of each relay for \"no route for this topic\"",
        ),
    }
}

fn destinations(destinations: &[DestinationView]) -> Vec<Finding> {
    let mut found = Vec::new();
    for one in destinations {
        let name = &one.name;
        if let Some(pause) = &one.paused {
            let why = if pause.note.is_empty() {
                String::new()
            } else {
                format!(" ({})", pause.note)
            };
            found.push(Finding::warn(
                "destinations",
                format!("{name} was paused by {}{why}", pause.actor),
                format!("when it may go on: posthouse destinations resume {name} --note TEXT"),
            ));
        } else if one.breaker == Breaker::Open {
            found.push(Finding::warn(
                "destinations",
                format!("{name} fails so often that nothing is sent to it for now"),
                "look after the receiver; it is tried again by itself. Why: posthouse messages list --state pending",
            ));
        }
    }
    if found.is_empty() {
        found.push(Finding::ok("destinations", "none is paused or fails"));
    }
    found
}

fn dead(counts: &Counts, dead: &[MessageView]) -> Finding {
    let n = counts.dead.value;
    if n == 0 {
        return Finding::ok("dead", none_seen("none", counts.dead.exact));
    }
    let mut by_cause: BTreeMap<String, u64> = BTreeMap::new();
    for message in dead.iter().filter(|message| message.state == State::Dead) {
        let reason = message.reason.map_or("-", |reason| reason.as_str());
        let code = message.last_code.as_deref();
        *by_cause
            .entry(code.map_or_else(|| reason.to_owned(), |code| format!("{reason} after {code}")))
            .or_default() += 1;
    }
    let causes: Vec<_> = by_cause.iter().map(|(cause, n)| format!("{n} {cause}")).collect();
    let sampled = if (dead.len() as u64) < n || !counts.dead.exact {
        " among the newest"
    } else {
        ""
    };
    Finding::warn(
        "dead",
        match causes.is_empty() {
            true => counted(counts.dead, "message"),
            false => format!("{}: {}{sampled}", counted(counts.dead, "message"), causes.join(", ")),
        },
        match dead.iter().all(|message| message.kind.is_of_saga()) && !dead.is_empty() {
            true => "they belong to sagas: posthouse saga list --state held",
            false => "look: posthouse dead list; when the cause is gone: posthouse dead replay --dry-run with a filter",
        },
    )
}

fn sagas(held: usize) -> Finding {
    match held {
        0 => Finding::ok("sagas", "none waits for a person"),
        n => Finding::warn(
            "sagas",
            format!("{} held", number(n as u64, "saga")),
            "look: posthouse saga list --state held; then posthouse saga show, which says what can be done",
        ),
    }
}

/// A count of zero that is no proof says so.
fn none_seen(found: &str, exact: bool) -> String {
    match exact {
        true => found.to_owned(),
        false => {
            format!("{found}, among the rows that were read; a long transaction or a large backlog hides the rest")
        }
    }
}

/// `1 lease`, `3 leases`, `10000+ leases`.
fn counted(count: Count, word: &str) -> String {
    format!("{count} {word}{}", if count == Count::exact(1) { "" } else { "s" })
}

fn number(n: u64, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}
