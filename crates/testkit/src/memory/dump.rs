//! Every record as a line of text, so that a test can say "nothing changed" and mean it.

use std::fmt::Write as _;

use super::tables::{Entry, Tables};

impl Tables {
    pub(super) fn dump(&self) -> String {
        let mut lines = String::new();
        for entry in self.messages.values() {
            let _ = writeln!(lines, "{}", message(entry));
            let _ = writeln!(lines, "{}", live(entry));
            for attempt in self.attempts.get(&entry.seq).into_iter().flatten() {
                let _ = writeln!(lines, "attempt {} {attempt:?}", entry.id);
            }
        }
        for (key, taken) in &self.dedupe {
            let _ = writeln!(
                lines,
                "dedupe {key:?} {} {} {:?}",
                taken.id, taken.digest, taken.ends_at
            );
        }
        for ((effect, seq), receipt) in &self.receipts {
            let _ = writeln!(lines, "receipt {effect:?} {seq} {receipt:?}");
        }
        for (key, entry) in &self.ledger {
            let _ = writeln!(lines, "ledger {key:?} {entry:?}");
        }
        for had in &self.inbox {
            let _ = writeln!(lines, "inbox {had:?}");
        }
        for step in &self.steps {
            let _ = writeln!(lines, "step {step:?}");
        }
        for saga in self.sagas.values() {
            let _ = writeln!(lines, "saga {saga:?}");
        }
        for line in &self.audit {
            let _ = writeln!(lines, "audit {line:?}");
        }
        for told in self.relays.values() {
            let _ = writeln!(lines, "relay {told:?}");
        }
        for pause in self.pauses.values() {
            let _ = writeln!(lines, "pause {pause:?}");
        }
        lines
    }
}

fn message(entry: &Entry) -> String {
    let (id, seq, m) = (entry.id, entry.seq, &entry.message);
    let names = (&m.namespace, &m.tenant, &m.topic, &m.order_key, &m.dedupe_key);
    let rest = (
        &m.headers,
        &m.ledger,
        m.kind,
        &m.ticket,
        m.parent,
        &m.destination,
        m.on_dead,
        entry.first_deliver_by,
    );
    format!(
        "message {id} {seq} {names:?} {} {} {rest:?}",
        entry.digest, entry.created_at
    )
}

fn live(entry: &Entry) -> String {
    let standing = (entry.pos, entry.standing, entry.reason, entry.due_at, entry.deliver_by);
    let rest = (
        &entry.held,
        entry.released_by,
        entry.finished_at,
        entry.updated_at,
        &entry.note,
        entry.resolved,
    );
    format!("live {} {standing:?} {rest:?}", entry.id)
}
