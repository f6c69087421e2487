//! Settle, renew and what ran out: everything behind the fence.

use posthouse_core::{
    Attempt, AttemptOutcome, Conflict, Effect, Error, Fate, Lease, LeaseToken, MessageId, Receipt, Renewal, Settlement,
    State, Timestamp, Verdict, class, machine::let_go, text::excerpt,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use surrealdb::types::SurrealValue;
use uuid::Uuid;

use crate::{
    admin::{About, write_audit},
    error::internal,
    insert::insert_all,
    ledger,
    message::{Deadline, InLine, LEASED, MESSAGE, Record, later},
    records::{self, Range, Run, Writes, get, name},
    saga,
    settings::{self, Options},
    work::{Key, Work, dedupe_name, run_of},
};

pub(crate) const ATTEMPT: &str = "posthouse_attempt";
pub(crate) const RECEIPT: &str = "posthouse_receipt";
/// The same by number, so that a receipt goes with its message.
pub(crate) const RECEIPT_OF: &str = "posthouse_receipt_of";

/// The evidence of a lease, as it is kept.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Kept {
    generation: i64,
    attempt: i64,
    worker: String,
    token: Uuid,
    outcome: String,
    code: Option<String>,
    error: Option<String>,
    receipt: Option<String>,
    started_at: i64,
    finished_at: i64,
}

#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct KeptReceipt {
    text: Option<String>,
}

/// Leases that end together, in one transaction.
pub(crate) struct Ending<'w, 't> {
    work: &'w mut Work<'t>,
    options: &'w Options,
    deadlines: BTreeMap<i64, Deadline>,
    /// In the caller's transaction what he had settled before is lost to him: its effect is there.
    own: bool,
}

/// Ends leases. One that cannot be settled spoils no other.
pub(crate) async fn settle(
    work: &mut Work<'_>,
    options: &Options,
    batch: &[Settlement],
) -> Result<Vec<Verdict>, Error> {
    let mut ending = Ending::begin(work, options, batch, false).await?;
    // What a settlement has changed that is refused after all must go: then it is begun anew without that one.
    let before = batch.iter().any(may_be_refused).then(|| ending.work.clone());
    let mut refused: BTreeMap<usize, Verdict> = BTreeMap::new();
    // Ends: one more is left out each time.
    loop {
        let (verdicts, spoilt) = ending.all(batch, &refused).await?;
        match (spoilt, &before) {
            (None, _) => {
                work.flush().await?;
                let verdicts = verdicts.into_iter().enumerate();
                return Ok(verdicts
                    .filter_map(|(at, verdict)| verdict.or_else(|| refused.remove(&at)))
                    .collect());
            }
            (Some(verdict), Some(before)) => {
                refused.insert(verdicts.len(), verdict);
                *ending.work = before.clone();
            }
            (Some(_), None) => return Err(internal("a settlement was refused that brings nothing along")),
        }
    }
}

/// Whether more than its lease decides about it.
fn may_be_refused(settlement: &Settlement) -> bool {
    !settlement.follow_ups.is_empty() || settlement.saga.is_some()
}

/// Ends one lease in the caller's transaction.
pub(crate) async fn settle_in(on: &dyn Run, options: &Options, settlement: &Settlement) -> Result<Verdict, Error> {
    settlement.check_own()?;
    let mut work = Work::begin(on, options).await?;
    // Whoever takes a lease back must hear of a renewal that comes first, and does by taking its deadline away.
    work.leaves_deadlines = !settlement.is_expiry();
    let batch = std::slice::from_ref(settlement);
    let mut ending = Ending::begin(&mut work, options, batch, true).await?;
    let verdict = ending.one(settlement, batch).await?;
    if verdict.is_settled() {
        work.flush().await?;
    }
    match verdict {
        Verdict::Refused(error) => Err(error),
        verdict => Ok(verdict),
    }
}

impl<'w, 't> Ending<'w, 't> {
    async fn begin(
        work: &'w mut Work<'t>,
        options: &'w Options,
        batch: &[Settlement],
        own: bool,
    ) -> Result<Self, Error> {
        let seqs: BTreeSet<_> = batch.iter().map(|settlement| settlement.lease.seq).collect();
        work.load(seqs.iter().copied()).await?;
        look_ahead(work, batch).await?;
        let names: Vec<_> = seqs.iter().map(|seq| name!(LEASED, *seq)).collect();
        let found = get::<Deadline>(work.on, &names).await?;
        let deadlines = seqs
            .into_iter()
            .zip(found)
            .filter_map(|(seq, found)| Some((seq, found?)));
        let deadlines = deadlines.collect();
        Ok(Self {
            work,
            options,
            deadlines,
            own,
        })
    }

    /// The fence: the same token, and the deadline ahead; or past, for the one settlement that reports just that.
    fn holds(&self, record: &Record, token: LeaseToken, expiry: bool) -> bool {
        let until = self
            .deadlines
            .get(&record.seq)
            .filter(|deadline| deadline.token == token.0);
        let same = record.is(State::Leased) && record.token == Some(token.0);
        same && until.is_some_and(|deadline| (deadline.until <= self.work.now) == expiry)
    }

    /// In the order of the batch, because the first of two settlements for a lease wins. Those that are known to be refused are left out; the
    /// first of the others that is ends it.
    async fn all(
        &mut self,
        batch: &[Settlement],
        refused: &BTreeMap<usize, Verdict>,
    ) -> Result<(Vec<Option<Verdict>>, Option<Verdict>), Error> {
        let mut verdicts = Vec::with_capacity(batch.len());
        for (at, settlement) in batch.iter().enumerate() {
            if refused.contains_key(&at) {
                verdicts.push(None);
                continue;
            }
            match self.one(settlement, batch).await? {
                spoilt @ (Verdict::Refused(_) | Verdict::Stale) => return Ok((verdicts, Some(spoilt))),
                verdict => verdicts.push(Some(verdict)),
            }
        }
        Ok((verdicts, None))
    }

    async fn one(&mut self, settlement: &Settlement, batch: &[Settlement]) -> Result<Verdict, Error> {
        let lease = &settlement.lease;
        let record = self
            .work
            .message(lease.seq)
            .await?
            .filter(|record| record.uuid == lease.id.0);
        let Some(record) = record else {
            return Ok(Verdict::LeaseLost);
        };
        if !self.holds(&record, lease.token, settlement.is_expiry()) {
            let repeated = !self.own && self.settled_before(&record, settlement).await?;
            return Ok(if repeated { Verdict::Settled } else { Verdict::LeaseLost });
        }
        match self.end(settlement, &record, batch).await {
            Err(error) if may_be_refused(settlement) && !error.retryable() => Ok(Verdict::Refused(error)),
            ended => ended,
        }
    }

    /// Performs a settlement that passed the fence.
    async fn end(&mut self, settlement: &Settlement, record: &Record, batch: &[Settlement]) -> Result<Verdict, Error> {
        let (lease, seq) = (&settlement.lease, record.seq);
        let rest = self.rest_of_run(settlement, record, batch).await?;
        self.record(settlement, record);
        let released = settlement.step.evidence.is_none().then_some(lease.token.0);
        self.work.apply(seq, &settlement.step).await?;
        let on_dead = lease.on_dead.as_str();
        let (code, error) = (settlement.code.clone(), settlement.error.clone());
        self.work
            .change(seq, |record| {
                on_dead.clone_into(&mut record.on_dead);
                record.released_by = released;
                if released.is_none() {
                    (record.last_code, record.last_error) = (code, error);
                }
            })
            .await?;
        if let Some(Effect(digest)) = &settlement.keeps {
            let effect = digest.to_string();
            let text = settlement.receipt.clone();
            self.work.put(name!(RECEIPT, &effect, seq), KeptReceipt { text });
            self.work
                .put(name!(RECEIPT_OF, seq, &effect), crate::insert::Seq { seq });
        }
        if let Some(end) = settlement.end() {
            ledger::message_ended(self.work, seq, &end).await?;
        }
        for later in rest {
            self.let_go(later, lease.token).await?;
        }
        insert_all(self.work, self.options, &settlement.follow_ups, false).await?;
        match &settlement.saga {
            Some(change) => saga::change(self.work, self.options, change).await,
            None => Ok(Verdict::Settled),
        }
    }

    /// Writes the evidence down.
    fn record(&mut self, settlement: &Settlement, record: &Record) {
        let Some(outcome) = settlement.step.evidence else {
            return;
        };
        let standing = settlement.step.standing;
        let kept = Kept {
            generation: standing.generation.into(),
            attempt: standing.attempts.into(),
            worker: record.worker.clone().unwrap_or_default(),
            token: settlement.lease.token.0,
            outcome: outcome.as_str().to_owned(),
            code: settlement.code.clone(),
            error: settlement.error.clone(),
            receipt: settlement.receipt.clone(),
            started_at: record.granted_at.unwrap_or(self.work.now),
            finished_at: self.work.now,
        };
        let epoch = i64::try_from(standing.epoch).unwrap_or(i64::MAX);
        self.work.make(name!(ATTEMPT, record.seq, epoch), kept);
    }

    /// Whether this settlement won before: its caller may not have heard the answer.
    async fn settled_before(&self, record: &Record, settlement: &Settlement) -> Result<bool, Error> {
        let lease = &settlement.lease;
        let Some(outcome) = settlement.step.evidence else {
            return Ok(record.released_by == Some(lease.token.0));
        };
        let epoch = i64::try_from(lease.standing.epoch).unwrap_or(i64::MAX);
        let kept: Option<Kept> = self.work.get(name!(ATTEMPT, record.seq, epoch)).await?;
        Ok(kept.is_some_and(|kept| kept.token == lease.token.0 && kept.outcome == outcome.as_str()))
    }

    /// What goes back with a message of a key that goes back, or that stays and blocks: the later ones that the same claim holds,
    /// unless they are settled together with it. A lease that ran out is left to the repairer.
    async fn rest_of_run(
        &mut self,
        settlement: &Settlement,
        record: &Record,
        batch: &[Settlement],
    ) -> Result<Vec<i64>, Error> {
        let Some(key) = record.key().filter(|_| settlement.stops_run()) else {
            return Ok(Vec::new());
        };
        let token = settlement.lease.token;
        let ended = |id: Uuid| {
            let mut own = batch.iter().filter(|other| other.lease.id.0 == id);
            // An expiry of what is live ends nothing, and what brings more along may be refused.
            own.any(|other| other.lease.token == token && !other.is_expiry() && !may_be_refused(other))
        };
        let mut rest = Vec::new();
        for later in self.leased_of(&key).await? {
            let behind = later.pos > record.pos && !ended(later.uuid);
            if behind && self.is_held(&later, token).await? {
                rest.push(later.seq);
            } else if let Some(deadline) = self.deadlines.get(&later.seq).filter(|_| behind) {
                // Whoever renews it at this moment, a moment too late by our clock, must be told, or we: else it would be live behind one that went back.
                self.work.put(name!(LEASED, later.seq), deadline.clone());
            }
        }
        rest.sort_unstable();
        Ok(rest)
    }

    async fn is_held(&mut self, record: &Record, token: LeaseToken) -> Result<bool, Error> {
        if !self.deadlines.contains_key(&record.seq) {
            let found = records::get_one(self.work.on, name!(LEASED, record.seq)).await?;
            self.deadlines.extend(found.map(|found| (record.seq, found)));
        }
        Ok(self.holds(record, token, false))
    }

    /// The messages of a key that are leased.
    async fn leased_of(&mut self, key: &Key) -> Result<Vec<Record>, Error> {
        let leased = records::first::<InLine>(self.work.on, run_of(key), records::ALL).await?;
        let seqs: Vec<_> = leased.into_iter().map(|(_, leased)| leased.seq).collect();
        self.work.load(seqs.iter().copied()).await?;
        let mut found = Vec::new();
        for seq in seqs {
            let record = self.work.message(seq).await?;
            found.extend(record.filter(|record| record.is(State::Leased)));
        }
        Ok(found)
    }

    /// It was not sent, so it is not counted, however often it happens.
    async fn let_go(&mut self, seq: i64, token: LeaseToken) -> Result<(), Error> {
        let Some(record) = self.work.message(seq).await? else {
            return Ok(());
        };
        let step = let_go(record.standing()?);
        self.work.apply(seq, &step).await?;
        self.work
            .change(seq, |record| record.released_by = Some(token.0))
            .await?;
        Ok(())
    }
}

/// Reads what will be asked for, all at once.
async fn look_ahead(work: &mut Work<'_>, batch: &[Settlement]) -> Result<(), Error> {
    let (mut names, mut sagas, mut keys, mut numbers) = (Vec::new(), BTreeSet::new(), Vec::new(), 0);
    for settlement in batch {
        let Some(record) = work.message(settlement.lease.seq).await? else {
            continue;
        };
        names.extend(dedupe_name(&record));
        keys.extend(record.key());
        numbers += usize::from(record.order_key.is_none() && settlement.step.standing.state == State::Pending);
        numbers += settlement.follow_ups.len();
        if let Some(change) = &settlement.saga {
            sagas.insert(saga::name_of(change.owner.id));
            numbers += change.sends.len();
        }
    }
    work.prefetch(names).await?;
    let sagas = saga::sized(work.on, sagas.into_iter().collect()).await?;
    work.prefetch_sized(&sagas).await?;
    work.know_keys(keys).await?;
    work.foresee(numbers);
    Ok(())
}

/// Moves the deadlines of leases that are held, and writes nothing else: a handler who ends the lease in his own transaction meanwhile is not
/// disturbed, and comes after it. Everybody else who ends or grants it writes the deadline too, so that of the two one is told.
pub(crate) async fn renew(on: &dyn Run, leases: &[Lease], by: Duration) -> Result<Vec<Renewal>, Error> {
    let (now, _) = settings::look(on).await?;
    let messages: Vec<_> = leases.iter().map(|lease| name!(MESSAGE, lease.seq)).collect();
    let deadlines: Vec<_> = leases.iter().map(|lease| name!(LEASED, lease.seq)).collect();
    let records = get::<Record>(on, &messages).await?;
    let found = get::<Deadline>(on, &deadlines).await?;
    let (mut answers, mut writes) = (Vec::with_capacity(leases.len()), Writes::default());
    for ((lease, record), deadline) in leases.iter().zip(records).zip(found) {
        let token = lease.token.0;
        let own = record.is_some_and(|record| record.is(State::Leased) && record.token == Some(token));
        let live = deadline.is_some_and(|deadline| deadline.token == token && deadline.until > now);
        if own && live {
            let until = later(now, by);
            writes.put(name!(LEASED, lease.seq), Deadline { token, until }.into_value());
            answers.push(Renewal::Renewed);
        } else {
            answers.push(Renewal::Lost);
        }
    }
    writes.write(on).await?;
    Ok(answers)
}

/// Leases that ran out, by number, from above `after`. What is left of leases that handlers have ended in their own transactions is taken away.
pub(crate) async fn expired(on: &dyn Run, after: i64, limit: u32) -> Result<Vec<Lease>, Error> {
    let (now, _) = settings::look(on).await?;
    let (mut ran_out, mut left, mut after) = (Vec::new(), Writes::default(), after);
    // Ends: `after` rises with each page.
    while ran_out.len() < limit as usize {
        let range = Range::all(LEASED).above(name!(LEASED, after));
        let page = records::first::<Deadline>(on, range, PAGE).await?;
        let Some((last, _)) = page.last() else { break };
        after = last.number(0)?;
        let full = page.len() == PAGE;
        let past: Vec<_> = page.into_iter().filter(|(_, deadline)| deadline.until <= now).collect();
        let names: Result<Vec<_>, Error> = past
            .iter()
            .map(|(name, _)| Ok(name!(MESSAGE, name.number(0)?)))
            .collect();
        let records = get::<Record>(on, &names?).await?;
        for ((name, deadline), record) in past.into_iter().zip(records) {
            match record.filter(|record| record.token == Some(deadline.token)) {
                Some(record) => ran_out.push(record.lease(LeaseToken(deadline.token))?),
                None => left.drop(name),
            }
        }
        if !full {
            break;
        }
    }
    left.write(on).await?;
    ran_out.truncate(limit as usize);
    Ok(ran_out)
}

/// How many records are looked at at a time.
const PAGE: usize = 500;

pub(crate) async fn fates(on: &dyn Run, leases: &[Lease]) -> Result<Vec<Fate>, Error> {
    let names: Vec<_> = leases.iter().map(|lease| name!(MESSAGE, lease.seq)).collect();
    let epoch = |lease: &Lease| i64::try_from(lease.standing.epoch).unwrap_or(i64::MAX);
    let attempts: Vec<_> = leases
        .iter()
        .map(|lease| name!(ATTEMPT, lease.seq, epoch(lease)))
        .collect();
    let (records, kept) = (get::<Record>(on, &names).await?, get::<Kept>(on, &attempts).await?);
    let fate = |((lease, record), kept): ((&Lease, Option<Record>), Option<Kept>)| {
        let token = lease.token.0;
        if record.is_some_and(|record| record.is(State::Leased) && record.token == Some(token)) {
            return Ok(Fate::Held);
        }
        match kept.filter(|kept| kept.token == token) {
            Some(kept) => Ok(Fate::Ended(kept.outcome.parse().map_err(Error::Invalid)?)),
            None => Ok(Fate::Gone),
        }
    };
    leases.iter().zip(records).zip(kept).map(fate).collect()
}

pub(crate) async fn earlier_receipts(on: &dyn Run, effects: &[Effect]) -> Result<Vec<Option<Receipt>>, Error> {
    let mut found = Vec::with_capacity(effects.len());
    for Effect(digest) in effects {
        let range = Range::under(name!(RECEIPT, &digest.to_string()));
        let first = records::first::<KeptReceipt>(on, range, 1).await?.pop();
        found.push(first.map(|(_, kept)| Receipt { text: kept.text }));
    }
    Ok(found)
}

/// The evidence of one message, oldest first.
pub(crate) async fn attempts(on: &dyn Run, seq: i64) -> Result<Vec<Attempt>, Error> {
    let kept = records::first::<Kept>(on, Range::under(name!(ATTEMPT, seq)), records::ALL).await?;
    let attempt = |(name, kept): (records::Name, Kept)| {
        Ok(Attempt {
            epoch: name.number(1)?.unsigned_abs(),
            generation: u32::try_from(kept.generation).map_err(internal)?,
            attempt: u32::try_from(kept.attempt).map_err(internal)?,
            worker: kept.worker,
            token: LeaseToken(kept.token),
            outcome: kept.outcome.parse::<AttemptOutcome>().map_err(Error::Invalid)?,
            code: kept.code,
            error: kept.error,
            receipt: kept.receipt,
            started_at: Timestamp::from_micros(kept.started_at),
            finished_at: Timestamp::from_micros(kept.finished_at),
        })
    };
    kept.into_iter().map(attempt).collect()
}

/// Writes into the audit what a worker that lost its lease found in its place.
pub(crate) async fn record_conflict(work: &mut Work<'_>, lease: &Lease, worker: &str) -> Result<Conflict, Error> {
    let record = work
        .message(lease.seq)
        .await?
        .filter(|record| record.uuid == lease.id.0);
    let record = record.ok_or(Error::NotFound(MessageId(lease.id.0)))?;
    let deadline: Option<Deadline> = records::get_one(work.on, name!(LEASED, lease.seq)).await?;
    let live = deadline.is_some_and(|deadline| deadline.token == lease.token.0 && deadline.until > work.now);
    let standing = record.standing()?;
    let conflict = Conflict {
        state: standing.state,
        worker: record.worker.clone(),
        epoch: standing.epoch,
        recorded: !(live && record.token == Some(lease.token.0)),
    };
    if !conflict.recorded {
        return Ok(conflict);
    }
    write_audit(
        work,
        About::Message(lease.id),
        excerpt(worker, 512),
        class::CONFLICT,
        conflict.note(lease),
    )
    .await?;
    work.flush().await?;
    Ok(conflict)
}
