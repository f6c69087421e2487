//! What a relay measures: one table, and one function for each thing that happens.
//!
//! They go to whatever recorder the program has installed for the crate `metrics` before the relay begins; without one they cost next to nothing. Labels hold
//! names of destinations and codes, never keys, tenants or payloads.

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use posthouse_core::{
    AttemptOutcome, Breaker, Delivery, Error, MessageId, STARTED_TOTAL, Settlement, class,
    ledger::{Begun, Clearance},
    saga::{Change, HeldReason, SagaState, Ticket},
};
use std::{
    sync::OnceLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::settler::End;

/// A measure: its name, its kind, its labels, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Its name, as it is exported.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it is.
    pub help: &'static str,
}

impl Measure {
    /// A measure of this name and kind, with these labels.
    pub const fn new(
        name: &'static str,
        kind: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            labels,
            help,
        }
    }

    /// Its row in the table of the guide.
    pub fn row(&self) -> String {
        let labels: Vec<_> = self.labels.iter().map(|label| format!("`{label}`")).collect();
        format!(
            "| `{}` | {} | {} | {} |",
            self.name,
            self.kind,
            labels.join(", "),
            self.help
        )
    }

    /// Tells the recorder what it is.
    pub fn describe(&self) {
        match self.kind {
            "counter" => describe_counter!(self.name, self.help),
            "gauge" => describe_gauge!(self.name, self.help),
            _ => describe_histogram!(self.name, Unit::Seconds, self.help),
        }
    }
}

const HITS: &str = "posthouse_ledger_hits_total";
const CONFLICTS: &str = "posthouse_ledger_conflicts_total";
const BUSY: &str = "posthouse_ledger_busy_total";
const TAKEOVERS: &str = "posthouse_ledger_takeovers_total";

/// What the ledger answered to whoever begins.
pub(crate) fn begun(begun: &Begun) {
    match begun {
        Begun::Replay(_) | Begun::Failed(_) => counter!(HITS).increment(1),
        Begun::Busy { .. } => counter!(BUSY).increment(1),
        Begun::Mismatch => counter!(CONFLICTS).increment(1),
        Begun::Acquired(hold) if hold.taken_over => counter!(TAKEOVERS).increment(1),
        Begun::Acquired(_) => {}
    }
}

/// What the ledger answered before a send.
pub(super) fn cleared(clearance: &Clearance) {
    match clearance {
        Clearance::Send => {}
        Clearance::Done(_) => counter!(HITS).increment(1),
        Clearance::Conflict => counter!(CONFLICTS).increment(1),
        Clearance::Wait(_) => counter!(BUSY).increment(1),
    }
}

/// Everything that a relay measures.
pub const MEASURES: &[Measure] = &[
    Measure::new(
        posthouse_core::ENQUEUED_TOTAL,
        "counter",
        &[],
        "Messages that this program has enqueued, also in transactions that were rolled back",
    ),
    Measure::new("posthouse_claimed_total", "counter", &[], "Messages that were claimed"),
    Measure::new(
        "posthouse_deliveries_total",
        "counter",
        &["destination", "outcome"],
        "Leases that ended, by outcome",
    ),
    Measure::new(
        "posthouse_retries_total",
        "counter",
        &["destination", "code"],
        "Sends that failed and are tried again",
    ),
    Measure::new(
        "posthouse_dead_total",
        "counter",
        &["destination", "reason"],
        "Messages that ended as dead",
    ),
    Measure::new(
        "posthouse_replays_total",
        "counter",
        &["kind"],
        "Messages that operators have replayed, at their first send since",
    ),
    Measure::new(
        "posthouse_released_total",
        "counter",
        &[],
        "Messages that were given back unsent",
    ),
    Measure::new(
        "posthouse_leases_expired_total",
        "counter",
        &[],
        "Leases that ran out, taken back by this relay",
    ),
    Measure::new(
        "posthouse_leases_lost_total",
        "counter",
        &[],
        "Leases that this relay lost while it worked",
    ),
    Measure::new(
        HITS,
        "counter",
        &[],
        "Times that the ledger had the answer: it was done before, or had failed for good",
    ),
    Measure::new(
        CONFLICTS,
        "counter",
        &[],
        "Times that a key of the ledger was used for something else",
    ),
    Measure::new(
        BUSY,
        "counter",
        &[],
        "Times that somebody else was at it, under the same key of the ledger",
    ),
    Measure::new(
        TAKEOVERS,
        "counter",
        &[],
        "Times that a holder in the ledger was not heard of again, and another went on",
    ),
    Measure::new(
        STARTED_TOTAL,
        "counter",
        &["saga"],
        "Sagas that this program has started, also in transactions that were rolled back",
    ),
    Measure::new(
        "posthouse_saga_completed_total",
        "counter",
        &["saga"],
        "Sagas of which all steps were done",
    ),
    Measure::new(
        "posthouse_saga_compensated_total",
        "counter",
        &["saga"],
        "Sagas of which all that was done is undone",
    ),
    Measure::new(
        "posthouse_saga_held_total",
        "counter",
        &["saga", "reason"],
        "Times that a saga began to wait for a person",
    ),
    Measure::new(
        "posthouse_saga_step_seconds",
        "histogram",
        &["saga", "step", "role"],
        "How long an attempt to do, verify or undo a step took",
    ),
    Measure::new("posthouse_in_flight", "gauge", &[], "Messages that are held now"),
    Measure::new(
        "posthouse_unrouted_topics",
        "gauge",
        &[],
        "Topics that this relay has claimed messages of and has no route for",
    ),
    Measure::new(
        "posthouse_breaker_state",
        "gauge",
        &["destination"],
        "0 closed, 1 half open, 2 open",
    ),
    Measure::new(
        "posthouse_phase_seconds",
        "histogram",
        &["phase"],
        "How long a claim, a send, a settlement took",
    ),
    Measure::new(
        "posthouse_first_send_seconds",
        "histogram",
        &["destination"],
        "From the making of a message to its first send",
    ),
    Measure::new(
        "posthouse_end_to_end_seconds",
        "histogram",
        &["destination"],
        "From the making of a message to its delivery",
    ),
    Measure::new(
        "posthouse_store_errors_total",
        "counter",
        &["code"],
        "Calls of the store that failed: outbox_flush_db_timeout or outbox_flush_db_error",
    ),
    Measure::new(
        "posthouse_stalls_total",
        "counter",
        &[],
        "Times that the program's threads were blocked for so long that leases were in danger",
    ),
];

/// Tells the recorder what each measure is.
pub fn describe() {
    MEASURES.iter().for_each(Measure::describe);
}

pub(super) fn claimed(messages: usize, took: Duration) {
    counter!("posthouse_claimed_total").increment(messages as u64);
    phase("claim", took);
}

pub(super) fn phase(phase: &'static str, took: Duration) {
    histogram!("posthouse_phase_seconds", "phase" => phase).record(took.as_secs_f64());
}

pub(super) fn taken() {
    gauge!("posthouse_in_flight").increment(1.0);
}

pub(super) fn let_go() {
    gauge!("posthouse_in_flight").decrement(1.0);
}

/// Topics without a route were added, or taken away.
pub(super) fn unrouted(by: f64) {
    gauge!("posthouse_unrouted_topics").increment(by);
}

/// What is measured of one destination. Those that come with each message are looked up once.
pub(super) struct Measures {
    destination: String,
    delivered: OnceLock<Counter>,
    first_send: OnceLock<Histogram>,
    end_to_end: OnceLock<Histogram>,
    breaker: OnceLock<Gauge>,
}

impl Measures {
    pub fn of(destination: &str) -> Self {
        Self {
            destination: destination.to_owned(),
            delivered: OnceLock::new(),
            first_send: OnceLock::new(),
            end_to_end: OnceLock::new(),
            breaker: OnceLock::new(),
        }
    }

    fn name(&self) -> String {
        self.destination.clone()
    }

    pub fn breaker(&self, state: Breaker) {
        let gauge = || gauge!("posthouse_breaker_state", "destination" => self.name());
        self.breaker.get_or_init(gauge).set(match state {
            Breaker::Closed => 0.0,
            Breaker::HalfOpen => 1.0,
            Breaker::Open => 2.0,
        });
    }

    /// A first send begins: of a message, or of one that an operator has replayed.
    pub fn first_send(&self, delivery: &Delivery) {
        if delivery.generation > 1 {
            counter!("posthouse_replays_total", "kind" => delivery.kind.as_str()).increment(1);
        } else if let Some(age) = age(delivery.id) {
            let histogram = || histogram!("posthouse_first_send_seconds", "destination" => self.name());
            self.first_send.get_or_init(histogram).record(age);
        }
    }

    fn delivered(&self, id: MessageId) {
        self.delivered
            .get_or_init(|| ended(self.name(), AttemptOutcome::Delivered))
            .increment(1);
        if let Some(age) = age(id) {
            let histogram = || histogram!("posthouse_end_to_end_seconds", "destination" => self.name());
            self.end_to_end.get_or_init(histogram).record(age);
        }
    }
}

fn ended(destination: String, outcome: AttemptOutcome) -> Counter {
    counter!("posthouse_deliveries_total", "destination" => destination, "outcome" => outcome.as_str())
}

/// A settlement was written, of a message that was sent there, or nowhere.
pub(super) fn settled(there: Option<&Measures>, end: &End) {
    let to = || there.map_or_else(String::new, Measures::name);
    match (end.outcome, there) {
        (None, _) => return counter!("posthouse_released_total").increment(1),
        (Some(AttemptOutcome::Delivered), Some(there)) => return there.delivered(end.id),
        (Some(outcome), _) => ended(to(), outcome).increment(1),
    }
    match end.next {
        posthouse_core::Next::Done => {}
        posthouse_core::Next::Pending(_) => {
            let code = end.code.clone().unwrap_or_default();
            counter!("posthouse_retries_total", "destination" => to(), "code" => code).increment(1);
        }
        posthouse_core::Next::Dead(reason) => {
            counter!("posthouse_dead_total", "destination" => to(), "reason" => reason.as_str()).increment(1);
        }
    }
}

/// An attempt of a step has ended.
pub(super) fn step(ticket: &Ticket, took: Duration) {
    let (saga, step) = (ticket.saga.clone(), ticket.step.clone());
    histogram!("posthouse_saga_step_seconds", "saga" => saga, "step" => step, "role" => ticket.role.as_str())
        .record(took.as_secs_f64());
}

/// A settlement was written that may have moved a saga.
pub(super) fn saga_moved(settlement: &Settlement) {
    settlement.saga.as_deref().into_iter().for_each(saga_changed);
}

/// A saga was written.
pub(super) fn saga_changed(change: &Change) {
    let (state, reason) = change.snapshot.state();
    if (state, reason) == change.was {
        return;
    }
    let saga = change.name.clone();
    match state {
        SagaState::Completed => counter!("posthouse_saga_completed_total", "saga" => saga).increment(1),
        SagaState::Compensated => counter!("posthouse_saga_compensated_total", "saga" => saga).increment(1),
        SagaState::Held => {
            let reason = reason.map_or("", HeldReason::as_str);
            counter!("posthouse_saga_held_total", "saga" => saga, "reason" => reason).increment(1);
        }
        SagaState::Running | SagaState::Compensating | SagaState::Abandoned => {}
    }
}

pub(super) fn expired(leases: u32) {
    counter!("posthouse_leases_expired_total").increment(u64::from(leases));
}

pub(super) fn lost() {
    counter!("posthouse_leases_lost_total").increment(1);
}

pub(super) fn store_error(error: &Error) {
    counter!("posthouse_store_errors_total", "code" => class::of_error(error)).increment(1);
}

pub(super) fn stalled() {
    counter!("posthouse_stalls_total").increment(1);
}

/// Since when there is a message, as its id says: by the clock of whoever made it.
fn age(id: MessageId) -> Option<f64> {
    let (secs, nanos) = id.0.get_timestamp()?.to_unix();
    let made = UNIX_EPOCH + Duration::new(secs, nanos);
    SystemTime::now().duration_since(made).ok().map(|age| age.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the guide and that of the code are the same.
    #[test]
    fn the_guide_lists_every_measure() {
        let guide = include_str!("../../../../docs/measures.md");
        let listed: Vec<_> = guide.lines().filter(|line| line.starts_with("| `posthouse_")).collect();
        let ours: Vec<_> = MEASURES.iter().map(Measure::row).collect();
        let missing: Vec<_> = ours.iter().filter(|row| !listed.contains(&row.as_str())).collect();
        assert!(missing.is_empty(), "docs/measures.md lacks:\n{missing:#?}");
    }
}
