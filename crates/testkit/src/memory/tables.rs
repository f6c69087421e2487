//! The tables, and the one function that moves a message.

use posthouse_core::{
    Attempt, AuditEntry, DeadReason, Digest, Error, Kind, Lease, LeaseToken, Message, MessageId, OnDead, Pause,
    Receipt, SagaId, Settlement, Standing, State, Step, Timestamp,
    lease::saga_of,
    ledger::{self, EntryKey, Fingerprint},
    saga::{Beginning, Definition},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use super::{
    Flaw, Options, START,
    presence::Told,
    saga::{Saga, SagaKey},
};

/// Number of a caller's transaction.
pub(super) type TxId = u64;

/// What a transaction needs is held by another that is still open.
#[derive(Debug)]
pub(super) struct Busy(pub TxId);

/// (namespace, tenant): those that take turns in a claim.
pub(super) type Lane = (String, String);

/// (namespace, tenant, topic, dedupe key).
pub(super) type DedupeKey = (String, String, String, String);

/// Whatever an open transaction holds against the others.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Key {
    Id(MessageId),
    Dedupe(DedupeKey),
    /// The producers' turn of an order key.
    Turn(Lane, String),
    /// The lease of a message, while a handler's own transaction settles it.
    Lease(i64),
    /// An entry of the ledger, while a holder's own transaction writes it.
    Entry(EntryKey),
    /// What a consumer has had.
    Had(String, MessageId),
    /// The key of a saga.
    Saga(SagaKey),
    /// What a participant knows of a step.
    Step(String, String),
}

/// A caller's transaction: what it will do at its commit, and what it holds until then.
#[derive(Default)]
pub(super) struct Open {
    pub keys: BTreeSet<Key>,
    pub entries: Vec<Entry>,
    pub settlements: Vec<Settlement>,
    pub ledger: BTreeMap<EntryKey, ledger::Entry>,
    pub inbox: BTreeSet<(String, MessageId)>,
    pub sagas: Vec<Beginning>,
    pub steps: BTreeMap<(String, String), bool>,
    pub notes: Vec<String>,
    pub waits_for: Option<TxId>,
}

/// A message with all that is known of it.
#[derive(Clone)]
pub(super) struct Entry {
    pub seq: i64,
    /// Its place in the line.
    pub pos: i64,
    pub id: MessageId,
    pub message: Message,
    pub digest: Digest,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The deliver-by it was enqueued with, for a replay.
    pub first_deliver_by: Option<Timestamp>,
    pub deliver_by: Option<Timestamp>,
    pub standing: Standing,
    pub reason: Option<DeadReason>,
    pub due_at: Timestamp,
    pub held: Option<Held>,
    /// The token of its last release, while nothing else has happened since.
    pub released_by: Option<LeaseToken>,
    pub finished_at: Option<Timestamp>,
    pub note: Option<String>,
    /// An operator cancelled it: it let its key go, and does not hold it again until it is replayed.
    pub freed: bool,
    /// An operator declared it delivered.
    pub resolved: bool,
}

/// Who holds a message.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub token: LeaseToken,
    pub worker: String,
    pub until: Timestamp,
    pub granted_at: Timestamp,
}

/// Who has a dedupe key.
pub(super) struct Taken {
    pub id: MessageId,
    pub digest: Digest,
    /// Free from then on; while the message lives there is no such time.
    pub ends_at: Option<Timestamp>,
}

pub(super) struct Tables {
    pub options: Options,
    pub flaw: Option<Flaw>,
    pub now: Timestamp,
    pub messages: BTreeMap<i64, Entry>,
    pub ids: HashMap<MessageId, i64>,
    pub attempts: BTreeMap<i64, Vec<Attempt>>,
    pub dedupe: BTreeMap<DedupeKey, Taken>,
    /// Kept receipts, by effect and number.
    pub receipts: BTreeMap<([u8; 32], i64), Receipt>,
    pub ledger: BTreeMap<EntryKey, ledger::Entry>,
    /// What consumers have had, and when.
    pub inbox: BTreeMap<(String, MessageId), Timestamp>,
    pub sagas: BTreeMap<SagaId, Saga>,
    /// What participants know of steps: whether it was undone, and when they first heard of it.
    pub steps: BTreeMap<(String, String), (bool, Timestamp)>,
    pub saga_keys: BTreeMap<SagaKey, SagaId>,
    /// The definitions of sagas, by namespace, name and version.
    pub definitions: BTreeMap<(String, String, u32), Definition>,
    pub audit: Vec<AuditEntry>,
    pub relays: BTreeMap<String, Told>,
    pub pauses: BTreeMap<String, Pause>,
    /// The application's own table.
    pub notes: Vec<String>,
    pub open: BTreeMap<TxId, Open>,
    /// The lane that was served last.
    pub served: Option<Lane>,
    /// Whether something may have become claimable.
    pub news: bool,
    /// How long each claim takes by the store's clock.
    pub claims_take: Duration,
    /// Only flawed stores read these two.
    pub cursor: i64,
    pub granted: HashMap<LeaseToken, String>,
    chance: fastrand::Rng,
    drawn: i64,
}

impl Entry {
    pub fn lane(&self) -> Lane {
        (self.message.namespace.clone(), self.message.tenant.clone())
    }

    pub fn order_key(&self) -> Option<(Lane, String)> {
        self.message.order_key.clone().map(|key| (self.lane(), key))
    }

    pub fn dedupe_key(&self) -> Option<DedupeKey> {
        dedupe_key(&self.message)
    }

    pub fn state(&self) -> State {
        self.standing.state
    }

    /// When it must not be sent any more. The live deliver-by of a step of a saga is none, because the store does not act on it.
    pub fn lapses_at(&self) -> Option<Timestamp> {
        match self.message.kind {
            Kind::Step => self.first_deliver_by,
            _ => self.deliver_by,
        }
    }

    /// Whether it ended in a way that holds the later ones of its key.
    pub fn blocks(&self) -> bool {
        let ended = match self.state() {
            State::Dead => self.reason != Some(DeadReason::Cancelled),
            State::Quarantined => true,
            _ => false,
        };
        ended && !self.freed && self.message.order_key.is_some() && self.message.on_dead == OnDead::Block
    }

    pub fn lease(&self, token: LeaseToken) -> Lease {
        Lease {
            id: self.id,
            seq: self.seq,
            token,
            standing: self.standing,
            on_dead: self.message.on_dead,
            bound: self.message.ledger.is_some(),
            saga: self.saga(),
        }
    }

    /// The saga whose message it is.
    pub fn saga(&self) -> Option<SagaId> {
        saga_of(self.message.kind, self.message.parent)
    }

    /// Its entry in the ledger, and what it is for.
    pub fn bound(&self) -> Option<(EntryKey, Fingerprint)> {
        let binding = self.message.ledger.as_ref()?;
        Some((binding.entry(&self.message.tenant), binding.fingerprint))
    }
}

pub(super) fn dedupe_key(message: &Message) -> Option<DedupeKey> {
    let key = message.dedupe_key.clone()?;
    Some((
        message.namespace.clone(),
        message.tenant.clone(),
        message.topic.clone(),
        key,
    ))
}

impl Tables {
    pub fn new(options: Options, flaw: Option<Flaw>) -> Self {
        Self {
            chance: options.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed),
            options,
            flaw,
            now: START,
            messages: BTreeMap::new(),
            ids: HashMap::new(),
            attempts: BTreeMap::new(),
            dedupe: BTreeMap::new(),
            receipts: BTreeMap::new(),
            ledger: BTreeMap::new(),
            inbox: BTreeMap::new(),
            sagas: BTreeMap::new(),
            steps: BTreeMap::new(),
            saga_keys: BTreeMap::new(),
            definitions: BTreeMap::new(),
            audit: Vec::new(),
            relays: BTreeMap::new(),
            pauses: BTreeMap::new(),
            notes: Vec::new(),
            open: BTreeMap::new(),
            served: None,
            news: false,
            claims_take: Duration::ZERO,
            cursor: 0,
            granted: HashMap::new(),
            drawn: 0,
        }
    }

    /// The next number: for messages and places alike, so that both tell the same order.
    pub fn draw(&mut self) -> i64 {
        self.drawn += 1;
        self.drawn
    }

    /// The fence of a new lease.
    pub fn token(&mut self) -> LeaseToken {
        let bytes = self.chance.u128(..).to_be_bytes();
        LeaseToken(uuid::Builder::from_random_bytes(bytes).into_uuid())
    }

    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    pub fn entry(&self, id: MessageId) -> Option<&Entry> {
        self.messages.get(self.ids.get(&id)?)
    }

    /// Refuses when a transaction other than `me` holds `key`.
    pub fn free(&self, me: Option<TxId>, key: &Key) -> Result<(), Busy> {
        match self
            .open
            .iter()
            .find(|(tx, open)| Some(**tx) != me && open.keys.contains(key))
        {
            Some((tx, _)) => Err(Busy(*tx)),
            None => Ok(()),
        }
    }

    /// Says that `tx` waits for `rival`, unless the rival already waits for it.
    pub fn wait(&mut self, tx: Option<TxId>, Busy(rival): Busy) -> Result<(), Error> {
        let Some(tx) = tx else { return Ok(()) };
        let mut next = Some(rival);
        // Ends: nobody was ever let into a circle, so the chain has an end.
        while let Some(waiting) = next {
            if waiting == tx {
                return Err(Error::Contention("deadlock with another transaction".into()));
            }
            next = self.open.get(&waiting).and_then(|open| open.waits_for);
        }
        if let Some(open) = self.open.get_mut(&tx) {
            open.waits_for = Some(rival);
        }
        Ok(())
    }

    /// Adds a new message.
    pub fn insert(&mut self, entry: Entry) {
        if let Some(key) = entry.dedupe_key() {
            let (id, digest) = (entry.id, entry.digest);
            self.dedupe.insert(
                key,
                Taken {
                    id,
                    digest,
                    ends_at: None,
                },
            );
        }
        self.ids.insert(entry.id, entry.seq);
        self.messages.insert(entry.seq, entry);
        self.news = true;
    }

    /// Moves a message to where the machine says. The caller adds what only it knows: the lease, the evidence, the note.
    pub fn apply(&mut self, seq: i64, step: Step) {
        let (now, place) = (self.now, self.draw());
        let Some(entry) = self.messages.get_mut(&seq) else {
            return;
        };
        entry.standing = step.standing;
        entry.reason = step.reason;
        entry.updated_at = now;
        entry.held = None;
        entry.released_by = None;
        entry.note = None;
        entry.finished_at = step.standing.state.is_terminal().then_some(now);
        if step.standing.state == State::Pending {
            entry.due_at = now.plus(step.due_in);
            // A message with an order key keeps its place, or its key's order would be lost.
            if entry.message.order_key.is_none() {
                entry.pos = place;
            }
        }
        self.tell_dedupe(seq);
    }

    /// The lifetime of a dedupe key begins when its message ends, and is forgotten when it is replayed.
    fn tell_dedupe(&mut self, seq: i64) {
        let Some(entry) = self.messages.get(&seq) else { return };
        let ends_at = entry
            .finished_at
            .and_then(|at| Some(at.plus(self.options.dedupe_lifetime?)));
        let taken = entry.dedupe_key().and_then(|key| self.dedupe.get_mut(&key));
        if let Some(taken) = taken.filter(|taken| taken.id == entry.id) {
            taken.ends_at = ends_at;
        }
    }

    /// Removes a message with its evidence. Its dedupe key is not part of it.
    pub fn remove(&mut self, seq: i64) {
        if let Some(entry) = self.messages.remove(&seq) {
            self.ids.remove(&entry.id);
            self.attempts.remove(&seq);
            self.receipts
                .retain(|(_, of), _| *of != seq || self.flaw == Some(Flaw::ReceiptsOutlive));
        }
    }

    pub fn write_audit(&mut self, about: About<'_>, actor: String, action: &str, note: String) {
        let (id, destination) = match about {
            About::Message(id) => (Some(id), None),
            About::Destination(name) => (None, Some(name.to_owned())),
            About::Store => (None, None),
        };
        self.audit.push(AuditEntry {
            n: self.audit.last().map_or(1, |last| last.n + 1),
            at: self.now,
            actor,
            action: action.to_owned(),
            id,
            destination,
            note,
            pruned: None,
        });
    }
}

/// What a line of the audit is about.
pub(super) enum About<'a> {
    Message(MessageId),
    Destination(&'a str),
    Store,
}
