//! Settle, renew and what ran out: everything behind the fence.

use posthouse_core::{
    Attempt, Conflict, Effect, Error, Fate, Lease, LeaseToken, Receipt, Renewal, Settlement, Verdict, class,
    machine::let_go, text::excerpt,
};
use std::time::Duration;

use super::{
    Flaw,
    tables::{About, Busy, Entry, Held, Key, Tables, TxId},
};

impl Tables {
    /// Ends one lease; in a caller's transaction, at its commit. `batch` is what is settled together with it.
    pub(super) fn settle(
        &mut self,
        tx: Option<TxId>,
        settlement: &Settlement,
        batch: &[Settlement],
    ) -> Result<Verdict, Busy> {
        let lease = &settlement.lease;
        let Some(seq) = self.ids.get(&lease.id).copied() else {
            return Ok(Verdict::LeaseLost);
        };
        let rest = self.rest_of_run(settlement, batch);
        let entry = self.foreign_entry(seq, settlement).map(Key::Entry);
        let leases = [seq].into_iter().chain(rest.iter().copied()).map(Key::Lease);
        let needed: Vec<_> = leases.chain(entry).collect();
        match needed.iter().try_for_each(|key| self.free(tx, key)) {
            // What a handler's transaction has in hand has not run out, nor has what stands before it in its run.
            Err(_) if settlement.is_expiry() => return Ok(Verdict::LeaseLost),
            free => free?,
        }
        if self.is_staged(tx, seq) {
            return Ok(Verdict::LeaseLost);
        }
        if !self.holds(lease, settlement.is_expiry()) {
            // In the caller's transaction, what he had settled before is lost to him: its effect is there.
            let repeated = tx.is_none() && self.was_settled(seq, settlement);
            return Ok(if repeated { Verdict::Settled } else { Verdict::LeaseLost });
        }
        if settlement.saga.as_ref().is_some_and(|change| !self.stands(change)) {
            return Ok(Verdict::Stale);
        }
        if self.has(Flaw::SettleInTwoTransactions) {
            self.end(settlement, batch);
        }
        // Follow-ups take no turn, so a settlement never waits for a producer of their key.
        let of_saga = settlement.saga.as_ref().map(|change| change.sends_at(self.now));
        let of_saga = of_saga.iter().flat_map(|sends| sends.iter());
        let follow_ups: Vec<_> = settlement.follow_ups.iter().chain(of_saga).cloned().collect();
        let plan = match self.plan(tx, &follow_ups)? {
            Ok(plan) => plan,
            Err(error) => return Ok(Verdict::Refused(error)),
        };
        match tx.and_then(|tx| self.open.get_mut(&tx)) {
            Some(open) => {
                open.keys.extend(plan.keys().chain(needed));
                open.entries.extend(plan.entries);
                open.settlements.push(settlement.clone());
            }
            None => {
                self.end(settlement, batch);
                plan.entries.into_iter().for_each(|entry| self.insert(entry));
            }
        }
        Ok(Verdict::Settled)
    }

    /// The fence: the same token, and the deadline ahead; or past, for the one settlement that reports just that.
    fn holds(&self, lease: &Lease, expiry: bool) -> bool {
        if expiry && self.has(Flaw::RepairWithoutGuard) {
            return true;
        }
        let Some(held) = self.entry(lease.id).and_then(|entry| entry.held.as_ref()) else {
            return false;
        };
        let same = match self.flaw {
            Some(Flaw::NoFence) => true,
            Some(Flaw::FenceByWorker) => self.granted.get(&lease.token) == Some(&held.worker),
            _ => held.token == lease.token,
        };
        same && (held.until <= self.now) == expiry
    }

    /// Whether this transaction has already settled the message.
    fn is_staged(&self, tx: Option<TxId>, seq: i64) -> bool {
        let open = tx.and_then(|tx| self.open.get(&tx));
        let mut settled = open.into_iter().flat_map(|open| &open.settlements);
        settled.any(|s| self.ids.get(&s.lease.id) == Some(&seq))
    }

    /// Whether this settlement won before: its caller may not have heard the answer.
    fn was_settled(&self, seq: i64, settlement: &Settlement) -> bool {
        let (token, epoch) = (settlement.lease.token, settlement.lease.standing.epoch);
        match settlement.step.evidence {
            Some(outcome) => self.attempts.get(&seq).is_some_and(|rows| {
                rows.iter()
                    .any(|a| (a.epoch, a.token, a.outcome) == (epoch, token, outcome))
            }),
            None => self
                .messages
                .get(&seq)
                .is_some_and(|entry| entry.released_by == Some(token)),
        }
    }

    /// Performs a settlement that passed the fence.
    pub(super) fn end(&mut self, settlement: &Settlement, batch: &[Settlement]) {
        let rest = self.rest_of_run(settlement, batch);
        self.end_one(settlement);
        for seq in rest {
            self.let_go(seq, settlement.lease.token);
        }
    }

    fn end_one(&mut self, settlement: &Settlement) {
        let Some(entry) = self.entry(settlement.lease.id) else {
            return;
        };
        let (seq, held, standing) = (entry.seq, entry.held.clone(), settlement.step.standing);
        if let Some(outcome) = settlement.step.evidence {
            self.attempts.entry(seq).or_default().push(Attempt {
                epoch: standing.epoch,
                generation: standing.generation,
                attempt: standing.attempts,
                worker: held.as_ref().map(|held| held.worker.clone()).unwrap_or_default(),
                token: settlement.lease.token,
                outcome,
                code: settlement.code.clone(),
                error: settlement.error.clone(),
                receipt: settlement.receipt.clone(),
                started_at: held.map_or(self.now, |held| held.granted_at),
                finished_at: self.now,
            });
        }
        if let Some(Effect(digest)) = settlement.keeps {
            let text = settlement.receipt.clone();
            self.receipts.insert((digest.0, seq), Receipt { text });
        }
        if let Some(entry) = self.messages.get_mut(&seq) {
            entry.message.on_dead = settlement.lease.on_dead;
        }
        self.apply(seq, settlement.step);
        if let Some(end) = settlement.end() {
            self.end_entry(seq, &end);
        }
        if let Some(change) = &settlement.saga {
            self.write_saga(change);
        }
        if let Some(entry) = self
            .messages
            .get_mut(&seq)
            .filter(|_| settlement.step.evidence.is_none())
        {
            entry.released_by = Some(settlement.lease.token);
        }
    }

    /// What goes back with a message of a key that goes back, or that stays and blocks: the later ones that the same claim holds,
    /// unless they are settled together with it. A lease that ran out is left to the repairer.
    fn rest_of_run(&self, settlement: &Settlement, batch: &[Settlement]) -> Vec<i64> {
        let kept = self.has(Flaw::RunGoesOn) || settlement.is_expiry() && self.has(Flaw::ExpiryKeepsRun);
        let Some(entry) = self
            .entry(settlement.lease.id)
            .filter(|_| settlement.stops_run() && !kept)
        else {
            return Vec::new();
        };
        let Some(key) = entry.order_key() else {
            return Vec::new();
        };
        let (pos, token) = (entry.pos, settlement.lease.token);
        let is_ended = |later: &Entry| {
            let mut own = batch.iter().filter(|other| other.lease.id == later.id);
            // An expiry of what is live ends nothing, and a follow-up may be refused.
            own.any(|other| other.lease.token == token && !other.is_expiry() && other.follow_ups.is_empty())
        };
        self.messages
            .values()
            .filter(|later| later.pos > pos && later.order_key().as_ref() == Some(&key))
            .filter(|later| {
                let held = later.held.as_ref();
                held.is_some_and(|held| held.token == token && held.until > self.now)
            })
            .filter(|later| !is_ended(later))
            .map(|later| later.seq)
            .collect()
    }

    /// It was not sent, so it is not counted, however often it happens.
    fn let_go(&mut self, seq: i64, token: LeaseToken) {
        let Some(step) = self.messages.get(&seq).map(|entry| let_go(entry.standing)) else {
            return;
        };
        self.apply(seq, step);
        if let Some(entry) = self.messages.get_mut(&seq) {
            entry.released_by = Some(token);
        }
    }

    pub(super) fn renew(&mut self, lease: &Lease, by: Duration) -> Renewal {
        if self.free(None, &Key::Lease(lease.seq)).is_err() {
            return Renewal::Locked;
        }
        if !self.holds(lease, false) {
            return Renewal::Lost;
        }
        let until = self.now.plus(by);
        if let Some(held) = self.messages.get_mut(&lease.seq).and_then(|entry| entry.held.as_mut()) {
            held.until = until;
        }
        Renewal::Renewed
    }

    /// What is staged in an open transaction is not seen.
    pub(super) fn fate(&self, lease: &Lease) -> Fate {
        let held = self.entry(lease.id).and_then(|entry| entry.held.as_ref());
        if held.is_some_and(|held| held.token == lease.token) {
            return Fate::Held;
        }
        let rows = self.attempts.get(&lease.seq).into_iter().flatten();
        let own = |row: &&Attempt| (row.epoch, row.token) == (lease.standing.epoch, lease.token);
        rows.into_iter()
            .find(own)
            .map_or(Fate::Gone, |row| Fate::Ended(row.outcome))
    }

    /// A lease that a handler's transaction is settling right now has not run out, whatever its deadline.
    pub(super) fn expired(&self, after: i64, limit: u32) -> Vec<Lease> {
        let past = |held: &Held| (held.until <= self.now).then_some(held.token);
        self.messages
            .range(after.saturating_add(1)..)
            .filter_map(|(_, entry)| Some((entry, past(entry.held.as_ref()?)?)))
            .filter(|(entry, _)| self.free(None, &Key::Lease(entry.seq)).is_ok())
            .map(|(entry, token): (_, LeaseToken)| entry.lease(token))
            .take(limit as usize)
            .collect()
    }

    pub(super) fn earlier_receipt(&self, Effect(digest): &Effect) -> Option<Receipt> {
        let kept = self.receipts.range((digest.0, i64::MIN)..=(digest.0, i64::MAX)).next();
        kept.map(|(_, receipt)| receipt.clone())
    }

    pub(super) fn record_conflict(&mut self, lease: &Lease, worker: &str) -> Result<Conflict, Error> {
        let entry = self.entry(lease.id).ok_or(Error::NotFound(lease.id))?;
        let holds = |held: &Held| held.token == lease.token && held.until > self.now;
        let conflict = Conflict {
            state: entry.state(),
            worker: entry.held.as_ref().map(|held| held.worker.clone()),
            epoch: entry.standing.epoch,
            recorded: !entry.held.as_ref().is_some_and(holds),
        };
        if !conflict.recorded {
            return Ok(conflict);
        }
        let (about, worker) = (About::Message(lease.id), excerpt(worker, 512));
        self.write_audit(about, worker, class::CONFLICT, conflict.note(lease));
        Ok(conflict)
    }
}
