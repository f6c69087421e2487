//! Ending leases.

use posthouse_core::{
    AttemptOutcome, DeadReason, Digest, Error, Fate, Next, OnDead, Settlement, Verdict, headers::to_json, ledger::Kept,
};

use tokio_postgres::{Client, Row, types::Type};
use uuid::Uuid;

use crate::{
    Arg, Call, Postgres, Schema,
    call::answer,
    enqueue::{enqueue_call, millis},
    error::from_driver,
    store::{Args, Patience},
};

/// What the function said about one settlement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// It won now.
    Settled,
    /// It had won before; nothing was written now.
    Repeated,
    /// The lease is not held.
    Lost,
}

/// The most claims whose messages are settled claim by claim: each costs a statement.
const MOST_CLAIMS: usize = 16;

/// The numbers of the messages of one claim after those of another, the claims, and how many there are of each.
fn by_claim(batch: &[&Settlement]) -> (Vec<i64>, Vec<Uuid>, Vec<i32>) {
    let mut claims: Vec<(Uuid, Vec<i64>)> = Vec::new();
    for Settlement { lease, .. } in batch {
        match claims.iter_mut().find(|(token, _)| *token == lease.token.0) {
            Some((_, seqs)) => seqs.push(lease.seq),
            None => claims.push((lease.token.0, vec![lease.seq])),
        }
    }
    // As they are locked everywhere.
    claims.sort_unstable_by_key(|(token, _)| *token);
    let counts = claims
        .iter()
        .map(|(_, seqs)| i32::try_from(seqs.len()).unwrap_or(i32::MAX));
    let counts = counts.collect();
    let (tokens, seqs): (Vec<_>, Vec<_>) = claims.into_iter().unzip();
    (seqs.concat(), tokens, counts)
}

impl Postgres {
    /// Settles a batch: what carries no follow-ups in one statement, the rest in one transaction with them.
    pub(crate) async fn settle_batch(&self, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
        let mut verdicts: Vec<Option<Verdict>> = batch.iter().map(|s| self.refused(s)).collect();
        let (of_sagas, others): (Vec<_>, Vec<_>) = (0..batch.len())
            .filter(|i| verdicts[*i].is_none())
            .partition(|i| batch[*i].saga.is_some());
        let (plain, rich): (Vec<_>, Vec<_>) = others.into_iter().partition(|i| batch[*i].follow_ups.is_empty());
        for (at, verdict) in self.settle_sagas(batch, sorted(batch, of_sagas)).await? {
            verdicts[at] = Some(verdict);
        }
        for (at, verdict) in self.settle_plain(batch, sorted(batch, plain)).await? {
            verdicts[at] = Some(verdict);
        }
        for (at, verdict) in self.settle_rich(batch, sorted(batch, rich)).await? {
            verdicts[at] = Some(verdict);
        }
        Ok(verdicts.into_iter().flatten().collect())
    }

    /// A follow-up that no store may accept is refused before any traffic.
    fn refused(&self, settlement: &Settlement) -> Option<Verdict> {
        let of_saga = settlement.saga.iter().flat_map(|change| &change.sends);
        let checked = settlement
            .follow_ups
            .iter()
            .chain(of_saga)
            .try_for_each(|m| m.check(&self.options.limits));
        checked.err().map(|e| Verdict::Refused(Error::Invalid(e)))
    }

    async fn settle_plain(&self, batch: &[Settlement], at: Vec<usize>) -> Result<Vec<(usize, Verdict)>, Error> {
        // Apart from the others where they are many, so that these may stay together.
        let (lean, mut rest): (Vec<_>, Vec<_>) = at.into_iter().partition(|i| batch[*i].is_plain());
        let mut done = Vec::with_capacity(lean.len());
        if rest.is_empty() || lean.len() >= self.options.lot as usize {
            let chosen: Vec<_> = lean.iter().map(|i| &batch[*i]).collect();
            match self.settle_delivered(&chosen).await? {
                true => done.extend(lean.into_iter().map(|i| (i, Verdict::Settled))),
                false => rest.extend(lean),
            }
        } else {
            rest.extend(lean);
        }
        done.extend(self.settle_rest(batch, sorted(batch, rest)).await?);
        Ok(done)
    }

    async fn settle_rest(&self, batch: &[Settlement], at: Vec<usize>) -> Result<Vec<(usize, Verdict)>, Error> {
        if at.is_empty() {
            return Ok(Vec::new());
        }
        let chosen: Vec<_> = at.iter().map(|i| &batch[*i]).collect();
        let expired = |s: &&Settlement| s.is_expiry() && s.lease.saga.is_none();
        let rows = if chosen.iter().all(expired) {
            self.settle_expired(&chosen).await?
        } else {
            let call = call(&self.schema, &chosen);
            self.query(&call.sql, &call.typed()).await?
        };
        let answers = answer(rows)?;
        let answers = read_verdicts(answers, at.len())?;
        Ok(at.into_iter().zip(answers.into_iter().map(Answer::verdict)).collect())
    }

    /// The lean way, for messages that were all delivered with nothing to say about them. Whether all of them ended; if not, those
    /// that did are known as repeated to whoever asks again.
    async fn settle_delivered(&self, batch: &[&Settlement]) -> Result<bool, Error> {
        if batch.is_empty() {
            return Ok(true);
        }
        let (seqs, tokens, counts) = by_claim(batch);
        if tokens.len() > MOST_CLAIMS {
            return Ok(false);
        }
        let sql = format!("SELECT {}.settle_delivered($1, $2, $3)", self.schema);
        let args: Args<'_> = &[
            (&seqs, Type::INT8_ARRAY),
            (&tokens, Type::UUID_ARRAY),
            (&counts, Type::INT4_ARRAY),
        ];
        let rows = self.query(&sql, args).await?;
        let won: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(from_driver)?;
        Ok(usize::try_from(won).is_ok_and(|won| won == batch.len()))
    }

    /// What ran out: a call that operators may make too, because it can say nothing else.
    async fn settle_expired(&self, batch: &[&Settlement]) -> Result<Vec<Row>, Error> {
        let seqs: Vec<_> = batch.iter().map(|s| s.lease.seq).collect();
        let tokens: Vec<_> = batch.iter().map(|s| s.lease.token.0).collect();
        let epoch = |s: &&Settlement| i64::try_from(s.lease.standing.epoch).unwrap_or(i64::MAX);
        let epochs: Vec<_> = batch.iter().map(epoch).collect();
        let sql = format!("SELECT {}.settle_expired($1, $2, $3)", self.schema);
        let args: Args<'_> = &[
            (&seqs, Type::INT8_ARRAY),
            (&tokens, Type::UUID_ARRAY),
            (&epochs, Type::INT8_ARRAY),
        ];
        self.query(&sql, args).await
    }

    /// All together first. If a follow-up is refused, halves, until the one that is to blame stands alone.
    async fn settle_rich(&self, batch: &[Settlement], at: Vec<usize>) -> Result<Vec<(usize, Verdict)>, Error> {
        let mut done = Vec::with_capacity(at.len());
        let mut todo = vec![at];
        // Ends: each round settles a group or makes it smaller.
        while let Some(group) = todo.pop() {
            if group.is_empty() {
                continue;
            }
            match self.settle_group(batch, &group).await {
                Ok(verdicts) => done.extend(group.into_iter().zip(verdicts)),
                Err(e) if e.retryable() => return Err(e),
                Err(e) if group.len() == 1 => done.push((group[0], Verdict::Refused(e))),
                Err(_) => {
                    let (left, right) = group.split_at(group.len() / 2);
                    todo.extend([right.to_vec(), left.to_vec()]);
                }
            }
        }
        Ok(done)
    }

    async fn settle_group(&self, batch: &[Settlement], group: &[usize]) -> Result<Vec<Verdict>, Error> {
        let mut patience = Patience::default();
        loop {
            match self.settle_together(batch, group).await {
                Err(e) if patience.again(&e).await => {}
                Err(e) => return Err(self.told(e).await),
                answer => return answer,
            }
        }
    }

    async fn settle_together(&self, batch: &[Settlement], group: &[usize]) -> Result<Vec<Verdict>, Error> {
        let mut lent = self.lender.lend().await?;
        let answer = self.settle_on(lent.client(), batch, group).await;
        lent.answered();
        answer
    }

    async fn settle_on(
        &self,
        client: &mut Client,
        batch: &[Settlement],
        group: &[usize],
    ) -> Result<Vec<Verdict>, Error> {
        let tx = client.transaction().await.map_err(from_driver)?;
        let chosen: Vec<_> = group.iter().map(|i| &batch[*i]).collect();
        let call = call(&self.schema, &chosen);
        let answers = read_verdicts(
            answer(tx.query_typed(&call.sql, &call.typed()).await.map_err(from_driver)?)?,
            group.len(),
        )?;
        let won = chosen.iter().zip(&answers).filter(|(_, a)| **a == Answer::Settled);
        let follow_ups: Vec<_> = won.flat_map(|(s, _)| s.follow_ups.iter().cloned()).collect();
        if !follow_ups.is_empty() {
            let (call, _) = enqueue_call(&self.schema, follow_ups);
            tx.query_typed(&call.sql, &call.typed()).await.map_err(from_driver)?;
        }
        tx.commit().await.map_err(from_driver)?;
        Ok(answers.into_iter().map(Answer::verdict).collect())
    }
}

impl Answer {
    fn verdict(self) -> Verdict {
        match self {
            Self::Settled | Self::Repeated => Verdict::Settled,
            Self::Lost => Verdict::LeaseLost,
        }
    }
}

/// Locks are taken in one order everywhere: by number.
fn sorted(batch: &[Settlement], mut at: Vec<usize>) -> Vec<usize> {
    at.sort_by_key(|i| batch[*i].lease.seq);
    at
}

/// The call that settles these.
pub(crate) fn call(schema: &Schema, batch: &[&Settlement]) -> Call {
    let mut args = args(batch);
    if !batch.iter().any(|s| s.lease.bound && s.next() == Next::Done) {
        return Call::new(schema, "settle", args);
    }
    args.extend(answers(batch));
    Call::new(schema, "settle_bound", args)
}

/// The arguments of `settle`.
pub(crate) fn args(batch: &[&Settlement]) -> Vec<Arg> {
    let longs = |f: &dyn Fn(&Settlement) -> Option<i64>| Arg::Longs(Some(batch.iter().map(|s| f(s)).collect()));
    let texts = |f: fn(&Settlement) -> &Option<String>| {
        let values: Vec<_> = batch.iter().map(|s| f(s).clone()).collect();
        Arg::Texts(values.iter().any(Option::is_some).then_some(values))
    };
    vec![
        longs(&|s| Some(s.lease.seq)),
        Arg::Uuids(Some(batch.iter().map(|s| Some(s.lease.token.0)).collect())),
        longs(&|s| i64::try_from(s.lease.standing.epoch).ok()),
        longs(&|s| Some(s.step.evidence.map_or(0, outcome_number))),
        longs(&|s| Some(next_number(s.next()))),
        longs(&|s| reason_number(s.next())),
        longs(&|s| Some(delay_ms(s.next()))),
        longs(&|s| Some(i64::from(s.step.standing.max_attempts))),
        texts(|s| &s.code),
        texts(|s| &s.error),
        texts(|s| &s.receipt),
        Arg::Blobs(
            batch
                .iter()
                .any(|s| s.keeps.is_some())
                .then(|| batch.iter().map(kept).collect()),
        ),
        Arg::Flags(Some(batch.iter().map(|s| s.lease.on_dead == OnDead::Block).collect())),
    ]
}

/// What is kept in the ledger of messages that are done. Those that die end their entries by that alone.
fn answers(batch: &[&Settlement]) -> [Arg; 6] {
    let ends: Vec<_> = batch.iter().map(|s| s.end().map(|end| end.kept().1)).collect();
    let kept: Vec<_> = ends.iter().map(|kept| kept.clone().unwrap_or_default()).collect();
    let bytes = |f: fn(&Kept) -> Option<&[u8]>| {
        let all = kept.iter().map(|kept| f(kept).unwrap_or_default().to_vec());
        Arg::Blobs(Some(all.collect()))
    };
    [
        Arg::Flags(Some(ends.iter().map(Option::is_some).collect())),
        Arg::Longs(Some(kept.iter().map(|kept| kept.status.map(i64::from)).collect())),
        Arg::Texts(Some(kept.iter().map(|kept| to_json(&kept.headers)).collect())),
        bytes(|kept| kept.body.as_deref()),
        bytes(|kept| kept.digest.as_ref().map(Digest::as_bytes)),
        Arg::Flags(Some(kept.iter().map(|kept| kept.body.is_some()).collect())),
    ]
}

/// The effect for which a receipt is kept; empty for none.
fn kept(settlement: &&Settlement) -> Vec<u8> {
    let effect = settlement.keeps.as_ref();
    effect.map_or_else(Vec::new, |effect| effect.as_bytes().to_vec())
}

pub(crate) fn read_verdicts(answers: Option<Vec<Option<String>>>, expected: usize) -> Result<Vec<Answer>, Error> {
    let answers: Vec<_> = answers
        .unwrap_or_default()
        .into_iter()
        .map(|a| match a.as_deref() {
            Some("settled") => Answer::Settled,
            Some("repeated") => Answer::Repeated,
            _ => Answer::Lost,
        })
        .collect();
    if answers.len() == expected {
        Ok(answers)
    } else {
        Err(Error::Internal(
            format!("{} answers for {expected} settlements", answers.len()).into(),
        ))
    }
}

/// What was answered about these leases.
pub(crate) fn read_fates(answers: &[Option<String>], expected: usize) -> Result<Vec<Fate>, Error> {
    if answers.len() != expected {
        let problem = format!("{} answers for {expected} leases", answers.len());
        return Err(Error::Internal(problem.into()));
    }
    let fate = |answer: &Option<String>| match answer.as_deref() {
        None => Ok(Fate::Gone),
        Some("held") => Ok(Fate::Held),
        Some(word) => Ok(Fate::Ended(word.parse()?)),
    };
    answers.iter().map(fate).collect()
}

/// The numbers of the tables; `words.sql` has the words.
pub(crate) const fn outcome_number(outcome: AttemptOutcome) -> i64 {
    match outcome {
        AttemptOutcome::Delivered => 1,
        AttemptOutcome::Duplicate => 2,
        AttemptOutcome::Expanded => 3,
        AttemptOutcome::Retry => 4,
        AttemptOutcome::Rejected => 5,
        AttemptOutcome::LeaseExpired => 6,
        AttemptOutcome::Lapsed => 7,
    }
}

const fn next_number(next: Next) -> i64 {
    match next {
        Next::Done => 1,
        Next::Pending(_) => 2,
        Next::Dead(_) => 3,
    }
}

const fn reason_number(next: Next) -> Option<i64> {
    match next {
        Next::Dead(DeadReason::Exhausted) => Some(1),
        Next::Dead(DeadReason::Rejected) => Some(2),
        Next::Dead(DeadReason::Lapsed) => Some(3),
        Next::Dead(DeadReason::Conflict) => Some(4),
        Next::Dead(DeadReason::Cancelled) => Some(5),
        _ => None,
    }
}

fn delay_ms(next: Next) -> i64 {
    match next {
        Next::Pending(after) => millis(after),
        _ => 0,
    }
}
