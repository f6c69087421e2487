//! Everything that happened to one message, in one table: the attempts of the relay and the hands of people.

use posthouse::{Admin, Attempt, AuditEntry, AuditFilter, Error, MessageId};

use crate::output::{Output, cut, took, visible};

/// The most lines of the audit that are looked at for one message.
const AUDIT_LINES: u32 = 1000;

/// A table tells this much of a text; `--json` has the whole.
pub const DETAIL: usize = 160;

/// The history of one message, oldest first.
pub struct Timeline {
    /// What the relay did.
    pub attempts: Vec<Attempt>,
    /// What people did, and what conflicted.
    pub audit: Vec<AuditEntry>,
}

impl Timeline {
    /// Reads it.
    pub async fn of(admin: &dyn Admin, id: MessageId) -> Result<Self, Error> {
        let attempts = admin.attempts(id).await?;
        let lines = AuditFilter {
            limit: AUDIT_LINES,
            ..AuditFilter::of(id)
        };
        let mut audit = admin.audit(&lines).await?;
        audit.reverse();
        Ok(Self { attempts, audit })
    }

    /// Whether nothing happened yet.
    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty() && self.audit.is_empty()
    }

    /// As people read it.
    pub fn table(&self, out: &Output) -> String {
        let attempts = self.attempts.iter().map(|a| (a.finished_at, attempt_line(a)));
        let audit = self.audit.iter().map(|a| (a.at, audit_line(a)));
        let mut lines: Vec<_> = attempts.chain(audit).collect();
        // Stable: what happened in the same instant stays in the order of its own list.
        lines.sort_by_key(|(at, _)| *at);
        let heading = ["AT", "WHAT", "GEN", "ATTEMPT", "EPOCH", "BY", "TOOK", "DETAIL"];
        out.broken_table(&heading, lines.into_iter().map(|(_, line)| line).collect())
    }
}

fn attempt_line(attempt: &Attempt) -> Vec<String> {
    let outcome = attempt.outcome.as_str();
    let said = [&attempt.code, &attempt.error, &attempt.receipt];
    let detail: Vec<_> = said
        .into_iter()
        .flatten()
        .filter(|text| *text != outcome)
        .map(String::as_str)
        .collect();
    vec![
        attempt.finished_at.to_string(),
        outcome.to_owned(),
        attempt.generation.to_string(),
        attempt.attempt.to_string(),
        attempt.epoch.to_string(),
        cut(&attempt.worker, 24),
        took(attempt.finished_at.since(attempt.started_at)),
        cut(&detail.join(": "), DETAIL),
    ]
}

/// The note of an audit row; of a prune, what it removed stands in front.
pub fn audit_note(entry: &AuditEntry) -> String {
    let Some(pruned) = &entry.pruned else {
        return entry.note.clone();
    };
    let counts = [
        ("done", pruned.done),
        ("dead", pruned.dead),
        ("dedupe keys", pruned.dedupe_keys),
        ("ledger entries", pruned.entries),
        ("inbox rows", pruned.inbox),
        ("sagas", pruned.sagas),
    ];
    let removed = counts.iter().filter(|(_, n)| *n > 0);
    let removed: Vec<_> = removed.map(|(what, n)| format!("{n} {what}")).collect();
    let text = format!("removed {}, ended by {}", removed.join(", "), pruned.cutoff);
    match entry.note.as_str() {
        "" => text,
        note => format!("{text}: {note}"),
    }
}

fn audit_line(entry: &AuditEntry) -> Vec<String> {
    let what = if entry.action == "outbox_flush_conflict" {
        "conflict"
    } else {
        &entry.action
    };
    let none = String::new;
    let (actor, detail) = (cut(&entry.actor, 24), cut(&audit_note(entry), DETAIL));
    vec![
        entry.at.to_string(),
        visible(what),
        none(),
        none(),
        none(),
        actor,
        none(),
        detail,
    ]
}
