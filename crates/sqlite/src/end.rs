//! The end of one lease, on whatever runs a statement: the store's own connection or a handler's transaction of another driver.

use posthouse_core::{
    Error, Lease, LeaseToken, Renewal, Settlement, State, Verdict, machine::let_go, saga::Change, settlement::Next,
};
use rusqlite::Connection;
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use crate::{
    Options,
    call::{Call, Here, Row, Run, Value, at_once},
    clock::{self, CLOCK},
    error::internal,
    insert::{insert_one, integer, run},
    ledger,
    place::{LOCATE, Waiting, ended, free_head, to_dead, to_pending},
    rows::{Key, Record, epoch},
    saga,
};

const BEGIN: &str = include_str!("../sql/settle_begin.sql");
const TAKE: &str = include_str!("../sql/settle_take.sql");
const ATTEMPT: &str = include_str!("../sql/settle_attempt.sql");
const BEFORE: &str = include_str!("../sql/settled_before.sql");
const REST_OF_RUN: &str = include_str!("../sql/rest_of_run.sql");
const KEEP: &str = include_str!("../sql/receipt_keep.sql");
const ON_DEAD_SET: &str = include_str!("../sql/on_dead_set.sql");
const RENEW: &str = include_str!("../sql/renew.sql");

/// Takes the write lock of a caller's transaction that may not have it yet.
pub(crate) async fn lock<R: Run>(on: &mut R, lease: &Lease) -> Result<(), Error> {
    run(on, BEGIN, vec![lease.seq.into(), token(&lease.token)]).await
}

/// Moves the deadline of a lease that is held.
pub(crate) async fn renew_one<R: Run>(on: &mut R, lease: &Lease, by: Duration) -> Result<Renewal, Error> {
    let now = integer(on, CLOCK).await?;
    let until = clock::later(now, by);
    let values = vec![lease.seq.into(), token(&lease.token), until.into(), now.into()];
    let renewed = on.run(&Call { sql: RENEW, values }).await?;
    Ok(if renewed.is_some() {
        Renewal::Renewed
    } else {
        Renewal::Lost
    })
}

/// Ends one lease in the caller's transaction, which holds the write lock. What he had settled before is lost to him: its effect is there.
pub(crate) async fn end_one<R: Run>(on: &mut R, options: &Options, settlement: &Settlement) -> Result<Verdict, Error> {
    let now = integer(on, CLOCK).await?;
    let mut ending = Ending::new(on, options, now);
    let verdict = ending.own(settlement).await?;
    ending.finish().await?;
    Ok(verdict.unwrap_or(Verdict::LeaseLost))
}

/// Changes a saga, which no lease is about: all of it, or nothing.
pub(crate) fn change_saga(tx: &Connection, options: &Options, change: &Change) -> Result<Verdict, Error> {
    let on = &mut Here(tx);
    at_once(async {
        run(on, "SAVEPOINT posthouse", vec![]).await?;
        let verdict = saga::change(on, options, change).await;
        if !matches!(verdict, Ok(Verdict::Settled)) {
            run(on, "ROLLBACK TO posthouse", vec![]).await?;
        }
        run(on, "RELEASE posthouse", vec![]).await?;
        match verdict {
            Err(error) if !error.retryable() => Ok(Verdict::Refused(error)),
            verdict => verdict,
        }
    })
}

/// Leases that end together.
pub(crate) struct Ending<'a, R> {
    on: &'a mut R,
    options: &'a Options,
    now: i64,
    /// Keys of which something changed; looked after once, when all is settled.
    keys: HashSet<(i64, Key)>,
    /// Runs that must not go on, and from which place on; looked after once as well.
    runs: HashMap<(i64, Key, LeaseToken), i64>,
}

/// A lease that was taken back from its holder.
struct Held {
    record: Record,
    worker: String,
    granted_at: i64,
}

impl<'a, R: Run> Ending<'a, R> {
    pub fn new(on: &'a mut R, options: &'a Options, now: i64) -> Self {
        Self {
            on,
            options,
            now,
            keys: HashSet::new(),
            runs: HashMap::new(),
        }
    }

    /// Ends one of them, or leaves it as it is. Told again, it is settled: its caller may not have heard the answer.
    pub async fn one(&mut self, settlement: &Settlement) -> Result<Verdict, Error> {
        if let Some(verdict) = self.own(settlement).await? {
            return Ok(verdict);
        }
        let repeated = self.settled_before(settlement).await?;
        Ok(if repeated { Verdict::Settled } else { Verdict::LeaseLost })
    }

    /// Ends one of them, if it is held.
    async fn own(&mut self, settlement: &Settlement) -> Result<Option<Verdict>, Error> {
        // Without follow-ups there is nothing to refuse, and no need of a savepoint.
        if settlement.follow_ups.is_empty() && settlement.saga.is_none() {
            return self.end(settlement).await;
        }
        let (keys, runs) = (self.keys.clone(), self.runs.clone());
        run(self.on, "SAVEPOINT posthouse", vec![]).await?;
        let verdict = self.end(settlement).await;
        if matches!(verdict, Err(_) | Ok(Some(Verdict::Stale))) {
            run(self.on, "ROLLBACK TO posthouse", vec![]).await?;
        }
        run(self.on, "RELEASE posthouse", vec![]).await?;
        match verdict {
            Err(error @ (Error::Contention(_) | Error::Unavailable(_) | Error::Timeout(_))) => Err(error),
            Err(error) => {
                (self.keys, self.runs) = (keys, runs);
                Ok(Some(Verdict::Refused(error)))
            }
            Ok(Some(Verdict::Stale)) => {
                (self.keys, self.runs) = (keys, runs);
                Ok(Some(Verdict::Stale))
            }
            verdict => verdict,
        }
    }

    /// Looks after the runs and the keys of what has ended.
    pub async fn finish(mut self) -> Result<(), Error> {
        self.release_rests().await?;
        for (lane, key) in &self.keys {
            free_head(self.on, *lane, key, self.now).await?;
        }
        Ok(())
    }

    async fn end(&mut self, settlement: &Settlement) -> Result<Option<Verdict>, Error> {
        let lease = &settlement.lease;
        let Some(held) = self.take(lease.seq, lease.token, settlement.is_expiry()).await? else {
            return Ok(None);
        };
        if held.record.key.is_some() && settlement.next() != Next::Done {
            let values = vec![lease.seq.into(), lease.on_dead.as_str().into()];
            run(self.on, ON_DEAD_SET, values).await?;
        }
        self.perform(settlement, &held).await?;
        self.keep(settlement).await?;
        if let Some(end) = settlement.end() {
            ledger::message_ended(self.on, lease.seq, &end).await?;
        }
        if settlement.stops_run() {
            self.stop_run(lease.token, &held.record);
        }
        for message in &settlement.follow_ups {
            insert_one(self.on, self.options, message).await?;
        }
        match &settlement.saga {
            Some(change) => saga::change(self.on, self.options, change).await.map(Some),
            None => Ok(Some(Verdict::Settled)),
        }
    }

    /// Keeps the receipt of a settlement that won, if it asks for that.
    pub async fn keep(&mut self, settlement: &Settlement) -> Result<(), Error> {
        let Some(effect) = &settlement.keeps else {
            return Ok(());
        };
        let receipt = settlement.receipt.as_deref().into();
        let values = vec![effect.as_bytes().into(), settlement.lease.seq.into(), receipt];
        run(self.on, KEEP, values).await
    }

    /// Takes the lease out of `leased`, if it is held.
    async fn take(&mut self, seq: i64, by: LeaseToken, expiry: bool) -> Result<Option<Held>, Error> {
        let values = vec![seq.into(), token(&by), self.now.into(), i64::from(expiry).into()];
        let Some(row) = self.on.run(&Call { sql: TAKE, values }).await? else {
            return Ok(None);
        };
        let (Some(record), Some(Value::Text(worker)), Some(Value::Integer(granted_at))) =
            (Record::of(&row, State::Leased), row.get(12), row.get(13))
        else {
            return Err(internal(format!("not a leased record: {row:?}")));
        };
        Ok(Some(Held {
            record,
            worker: worker.to_string(),
            granted_at: *granted_at,
        }))
    }

    /// Whether this settlement won before.
    async fn settled_before(&mut self, settlement: &Settlement) -> Result<bool, Error> {
        let lease = &settlement.lease;
        let Some(outcome) = settlement.step.evidence else {
            let values = vec![lease.seq.into()];
            let located = self.on.run(&Call { sql: LOCATE, values }).await?;
            let released_by = located.as_ref().and_then(|row| row.get(13));
            return Ok(released_by == Some(&token(&lease.token)));
        };
        let values = vec![
            lease.seq.into(),
            epoch(&lease.standing).into(),
            token(&lease.token),
            outcome.as_str().into(),
        ];
        let before: Row = self.on.run(&Call { sql: BEFORE, values }).await?;
        Ok(before.is_some())
    }

    /// Writes the evidence and moves the record.
    async fn perform(&mut self, settlement: &Settlement, held: &Held) -> Result<(), Error> {
        self.attest(settlement, held).await?;
        let record = Record {
            standing: settlement.step.standing,
            ..held.record.clone()
        };
        if let Some(key) = &record.key {
            self.keys.insert((record.lane, key.clone()));
        }
        match settlement.next() {
            Next::Done => ended(self.on, &record, self.now).await,
            Next::Dead(reason) => to_dead(self.on, &record, Some(reason), true, self.now).await,
            Next::Pending(due_in) => {
                let released_by = settlement.step.evidence.is_none().then_some(settlement.lease.token);
                self.put_back(&record, due_in, released_by).await
            }
        }
    }

    async fn put_back(
        &mut self,
        record: &Record,
        due_in: Duration,
        released_by: Option<LeaseToken>,
    ) -> Result<(), Error> {
        let due_at = clock::later(self.now, due_in);
        let waiting = Waiting {
            due_at,
            changed_at: Some(self.now),
            released_by,
        };
        to_pending(self.on, record, waiting, self.now).await
    }

    /// One line of evidence, if the lease counted.
    async fn attest(&mut self, settlement: &Settlement, held: &Held) -> Result<(), Error> {
        let Some(outcome) = settlement.step.evidence else {
            return Ok(());
        };
        let standing = &settlement.step.standing;
        let values = vec![
            held.record.seq.into(),
            epoch(standing).into(),
            i64::from(standing.generation).into(),
            i64::from(standing.attempts).into(),
            i64::from(standing.max_attempts).into(),
            held.worker.as_str().into(),
            token(&settlement.lease.token),
            outcome.as_str().into(),
            settlement.code.as_deref().into(),
            settlement.error.as_deref().into(),
            settlement.receipt.as_deref().into(),
            held.granted_at.into(),
            self.now.into(),
        ];
        run(self.on, ATTEMPT, values).await
    }

    /// A message of a key went back, or stays and blocks: the rest of the same claim's run must not overtake it.
    fn stop_run(&mut self, token: LeaseToken, record: &Record) {
        if let Some(key) = record.key.clone() {
            let first = self.runs.entry((record.lane, key, token)).or_insert(record.pos);
            *first = record.pos.min(*first);
        }
    }

    /// The later ones of these runs that are still held go back. None of them is counted, however often it happens. A lease
    /// that ran out is left to the repairer.
    async fn release_rests(&mut self) -> Result<(), Error> {
        for ((lane, key, by), pos) in std::mem::take(&mut self.runs) {
            // Ends: each that is found leaves `leased`.
            while let Some(seq) = self.next_of_run(lane, &key, by, pos).await? {
                let Some(Held { mut record, .. }) = self.take(seq, by, false).await? else {
                    break;
                };
                record.standing = let_go(record.standing).standing;
                self.put_back(&record, Duration::ZERO, Some(by)).await?;
            }
        }
        Ok(())
    }

    async fn next_of_run(&mut self, lane: i64, key: &Key, by: LeaseToken, pos: i64) -> Result<Option<i64>, Error> {
        let values = vec![lane.into(), key.value(), pos.into(), token(&by), self.now.into()];
        let sql = REST_OF_RUN;
        match self.on.run(&Call { sql, values }).await?.as_deref() {
            None => Ok(None),
            Some([Value::Integer(seq)]) => Ok(Some(*seq)),
            other => Err(internal(format!("not a number: {other:?}"))),
        }
    }
}

fn token(token: &LeaseToken) -> Value<'static> {
    Value::Blob(token.0.as_bytes().to_vec().into())
}
