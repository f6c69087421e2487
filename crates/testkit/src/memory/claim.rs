//! Claim: who may have what, and in which order.

use posthouse_core::{
    Claim, Claimed, DeadReason, Delivery, Error, Event, LeaseToken, RetryPolicy, State, Step,
    ledger::End,
    machine::{Ctx, step},
};
use std::collections::{BTreeMap, VecDeque};

use super::{
    Flaw,
    tables::{Entry, Held, Lane, Tables},
};

/// What a look over the messages found, by number.
#[derive(Default)]
struct Found {
    lapsed: Vec<i64>,
    /// Of each lane, oldest first.
    free: BTreeMap<Lane, VecDeque<i64>>,
}

impl Tables {
    /// What is granted, and whether that is all that was free.
    pub(super) fn claim(&mut self, claim: &Claim) -> Result<(Vec<Claimed>, bool), Error> {
        let found = self.look(claim);
        for seq in found.lapsed {
            self.meet(seq, Event::Lapsed);
            self.end_entry(seq, &End::unsent(DeadReason::Lapsed));
        }
        let token = self.token();
        let free: usize = found.free.values().map(VecDeque::len).sum();
        let chosen = self.choose(claim, found.free);
        let complete = chosen.len() == free;
        if !chosen.is_empty() && !self.has(Flaw::LateGrants) {
            claim.check_in_time(self.claims_take)?;
        }
        let granted = chosen.into_iter().filter_map(|seq| self.grant(claim, token, seq));
        Ok((granted.collect(), complete))
    }

    /// Applies an event that is no end of a lease; a state that does not allow it is left as it is.
    fn meet(&mut self, seq: i64, event: Event) {
        let Some(entry) = self.messages.get(&seq) else { return };
        if let Ok(step) = decide(entry, event) {
            self.apply(seq, step);
        }
    }

    fn look(&self, claim: &Claim) -> Found {
        let mut keys: BTreeMap<_, Vec<&Entry>> = BTreeMap::new();
        let mut alone = Vec::new();
        for entry in self.messages.values().filter(|entry| in_scope(entry, claim)) {
            match entry.order_key() {
                Some(key) => keys.entry(key).or_default().push(entry),
                None => alone.push(entry),
            }
        }
        let mut found = Found::default();
        let mut free: Vec<&Entry> = Vec::new();
        for entry in alone {
            self.walk(&[entry], claim, &mut found.lapsed, &mut free);
        }
        for mut line in keys.into_values() {
            line.sort_by_key(|entry| entry.pos);
            // All leases of a key belong to one claim, and this one has none yet.
            if self.has(Flaw::CountBasedKeyLimit) || line.iter().all(|entry| entry.held.is_none()) {
                self.walk(&line, claim, &mut found.lapsed, &mut free);
            }
        }
        free.sort_by_key(|entry| entry.pos);
        for entry in free {
            found.free.entry(entry.lane()).or_default().push_back(entry.seq);
        }
        found
    }

    /// Takes from the head of a line as far as nothing holds it.
    fn walk<'a>(&self, line: &[&'a Entry], claim: &Claim, lapsed: &mut Vec<i64>, free: &mut Vec<&'a Entry>) {
        for entry in line {
            if self.has(Flaw::CursorPolling) && entry.seq <= self.cursor {
                continue;
            }
            if entry.blocks() {
                break;
            }
            if entry.state() != State::Pending {
                continue;
            }
            if claim.not_topics.contains(&entry.message.topic) {
                break;
            }
            if entry.deliver_by.is_some_and(|at| at <= self.now) {
                lapsed.push(entry.seq);
                if entry.message.on_dead == posthouse_core::OnDead::Block {
                    break;
                }
                continue;
            }
            if entry.due_at > self.now {
                if self.has(Flaw::HeadDoesNotHold) {
                    continue;
                }
                break;
            }
            free.push(entry);
        }
    }

    /// Tenants take turns, one message each, beginning after the one that was served last.
    fn choose(&mut self, claim: &Claim, mut free: BTreeMap<Lane, VecDeque<i64>>) -> Vec<i64> {
        let (mut chosen, mut bytes) = (Vec::new(), 0);
        let mut lanes: VecDeque<Lane> = free.keys().cloned().collect();
        let after = lanes.iter().filter(|lane| Some(*lane) <= self.served.as_ref()).count();
        lanes.rotate_left(after % lanes.len().max(1));
        // Ends: each round takes a message or drops a lane.
        while let Some(lane) = lanes.pop_front() {
            let Some(seq) = free.get_mut(&lane).and_then(VecDeque::pop_front) else {
                continue;
            };
            bytes += self
                .messages
                .get(&seq)
                .map_or(0, |entry| entry.message.payload.len() as u64);
            let too_large = !chosen.is_empty() && claim.max_bytes.is_some_and(|most| bytes > most);
            if too_large || chosen.len() >= claim.batch as usize {
                break;
            }
            chosen.push(seq);
            self.served = Some(lane.clone());
            lanes.push_back(lane);
        }
        chosen
    }

    fn grant(&mut self, claim: &Claim, token: LeaseToken, seq: i64) -> Option<Claimed> {
        let step = decide(self.messages.get(&seq)?, Event::Claimed).ok()?;
        self.apply(seq, step);
        let (now, late_count) = (self.now, self.has(Flaw::AttemptsAtSettle));
        let never_lapses = self.has(Flaw::StepsNeverLapse);
        self.cursor = self.cursor.max(seq);
        if self.has(Flaw::FenceByWorker) {
            self.granted.insert(token, claim.worker.clone());
        }
        let entry = self.messages.get_mut(&seq)?;
        entry.held = Some(Held {
            token,
            worker: claim.worker.clone(),
            until: now.plus(claim.lease),
            granted_at: now,
        });
        let claimed = Claimed {
            lease: entry.lease(token),
            delivery: delivery(entry),
            deliver_within: entry.lapses_at().filter(|_| !never_lapses).map(|at| at.since(now)),
        };
        if late_count {
            entry.standing.attempts -= 1;
        }
        Some(claimed)
    }
}

/// Asks the machine about an event in which no chance is involved.
pub(super) fn decide(entry: &Entry, event: Event) -> Result<Step, posthouse_core::Illegal> {
    let policy = RetryPolicy::default();
    step(
        entry.standing,
        event,
        Ctx {
            policy: &policy,
            roll: 0.5,
        },
    )
}

fn in_scope(entry: &Entry, claim: &Claim) -> bool {
    let namespace = claim.namespaces.is_empty() || claim.namespaces.contains(&entry.message.namespace);
    namespace
        && !claim.not_tenants.contains(&entry.message.tenant)
        && claim
            .tenant
            .as_ref()
            .is_none_or(|tenant| *tenant == entry.message.tenant)
}

fn delivery(entry: &Entry) -> Delivery {
    let message = &entry.message;
    Delivery {
        id: entry.id,
        epoch: entry.standing.epoch,
        generation: entry.standing.generation,
        attempt: entry.standing.attempts,
        tenant: message.tenant.clone(),
        namespace: message.namespace.clone(),
        topic: message.topic.clone(),
        order_key: message.order_key.clone(),
        content_type: message.content_type.clone(),
        payload: message.payload.clone(),
        headers: message.headers.clone(),
        kind: message.kind,
        parent: message.parent,
        destination: message.destination.clone(),
        ticket: message.ticket.clone(),
    }
}
