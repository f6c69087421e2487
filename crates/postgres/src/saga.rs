//! Sagas: thin calls of the functions in `saga.sql`. What becomes of a saga is decided by the core.

use posthouse_core::{
    Error, Message, MessageId, STARTED_TOTAL, SagaId, Settlement, Timestamp, Verdict,
    ledger::check_consumer,
    saga::{
        Change, Doing, Found, Happened, Live, Loaded, LogLine, SagaFilter, SagaPage, SagaRow, Snapshot, Standing,
        Start, Started, Undoing, check_step_key,
    },
    text::error_text,
};
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use crate::{
    Arg, Call, Outbox, Postgres, Run, Schema,
    call::answer,
    enqueue::message_args,
    rows::{at, cause, get, number, when, word},
    settle,
    store::Args,
};

impl Outbox {
    /// Starts a saga in the caller's own transaction: it exists, and its first step is sent, if and only if that commits.
    ///
    /// ```no_run
    /// # use posthouse_postgres::Outbox;
    /// # use posthouse_core::{SagaId, saga::{Definition, Start}};
    /// # async fn example(client: &mut tokio_postgres::Client, trip: Definition) -> Result<(), Box<dyn std::error::Error>> {
    /// let outbox = Outbox::default();
    /// let mut tx = client.transaction().await?;
    /// tx.execute("insert into trip (id, city) values ($1, $2)", &[&42i64, &"Rome"]).await?;
    /// let start = Start::new(SagaId(uuid::Uuid::now_v7()), &trip, "trip-42", &serde_json::json!({ "city": "Rome" }))?;
    /// outbox.start(&mut tx, start).await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    pub async fn start<T: Run>(&self, tx: &mut T, start: Start) -> Result<Started, Error> {
        let saga = start.begin(self.allowed())?;
        let (owner, definition) = (&saga.owner, &saga.definition);
        let (state, reason) = saga.state_words();
        let names = [
            &owner.namespace,
            &owner.tenant,
            definition.name(),
            &saga.key,
            &definition.json(),
            state,
        ];
        let mut words: Vec<_> = names.into_iter().map(|word| Some(word.to_owned())).collect();
        words.extend([reason.map(str::to_owned), Some(snapshot_json(&saga.snapshot)?)]);
        let mut args = vec![
            Arg::Uuids(Some(vec![Some(owner.id.0)])),
            Arg::Texts(Some(words)),
            Arg::Longs(Some(vec![Some(i64::from(definition.version()))])),
            Arg::Blobs(Some(vec![
                definition.hash().as_bytes().to_vec(),
                saga.digest.as_bytes().to_vec(),
            ])),
            Arg::Uuids(Some(saga.snapshot.carriers().map(|id| Some(id.0)).collect())),
        ];
        args.extend(log_args(&saga.log.iter().collect::<Vec<_>>()));
        args.extend(send_args(
            saga.sends.iter().map(|message| (1, message.clone())).collect(),
        ));
        let answer = tx.run(&Call::new(self.schema(), "saga_start", args)).await?;
        let answer: Vec<_> = answer.into_iter().flatten().flatten().collect();
        let existing = || match answer.get(1).map(|id| id.parse::<SagaId>()) {
            Some(Ok(id)) => Ok(id),
            _ => Err(Error::Internal(format!("a saga was not told: {answer:?}").into())),
        };
        match answer.first().map(String::as_str) {
            Some("new") => {
                metrics::counter!(STARTED_TOTAL, "saga" => definition.name().to_owned()).increment(1);
                Ok(Started::New(owner.id))
            }
            Some("existing") => existing().map(Started::Existing),
            Some("mismatch") => Err(Error::SagaMismatch(existing()?)),
            Some("version") => Err(definition.known_otherwise().into()),
            other => Err(Error::Internal(format!("starting a saga answered {other:?}").into())),
        }
    }
}

impl Outbox {
    /// A step of a saga comes to a participant, who does it if that is [`Doing::First`], in the caller's own transaction. Waits for another transaction in
    /// which the same key comes.
    pub async fn do_once<T: Run>(&self, tx: &mut T, consumer: &str, key: &str) -> Result<Doing, Error> {
        let word = self.step_once(tx, consumer, key, false).await?;
        Doing::parse(&word).ok_or_else(|| Error::Internal(format!("a step was told as {word:?}").into()))
    }

    /// A step of a saga is to be undone, by the key under which it was done; the participant does so if that is [`Undoing::Now`], in the caller's own
    /// transaction. From its commit on the step is refused, also if it never came.
    pub async fn undo_once<T: Run>(&self, tx: &mut T, consumer: &str, key: &str) -> Result<Undoing, Error> {
        let word = self.step_once(tx, consumer, key, true).await?;
        Undoing::parse(&word).ok_or_else(|| Error::Internal(format!("a step was told as {word:?}").into()))
    }

    async fn step_once<T: Run>(&self, tx: &mut T, consumer: &str, key: &str, undo: bool) -> Result<String, Error> {
        check_consumer(consumer)?;
        check_step_key(key)?;
        let text = |text: &str| Arg::Texts(Some(vec![Some(text.to_owned())]));
        let args = vec![text(consumer), text(key), Arg::Flags(Some(vec![undo]))];
        let answer = tx.run(&Call::new(self.schema(), "step_once", args)).await?;
        Ok(answer.into_iter().flatten().flatten().next().unwrap_or_default())
    }
}

fn snapshot_json(snapshot: &Snapshot) -> Result<String, Error> {
    serde_json::to_string(snapshot).map_err(|e| Error::Internal(e.into()))
}

/// What, to which step, and what was said.
fn log_args(log: &[&Happened]) -> [Arg; 3] {
    let texts = |f: &dyn Fn(&Happened) -> Option<String>| Arg::Texts(Some(log.iter().map(|line| f(line)).collect()));
    [
        texts(&|line| Some(line.what.to_owned())),
        texts(&|line| line.step.clone()),
        texts(&|line| Some(line.detail.clone())),
    ]
}

/// Messages, each with the number of what it belongs to.
fn send_args(sends: Vec<(i64, Message)>) -> Vec<Arg> {
    let (of, messages): (Vec<_>, Vec<_>) = sends.into_iter().map(|(of, message)| (Some(of), message)).unzip();
    let ids = messages
        .iter()
        .map(|message| message.id.unwrap_or_else(|| MessageId(Uuid::now_v7())));
    let ids: Vec<_> = ids.collect();
    let mut args = vec![Arg::Longs(Some(of))];
    args.extend(message_args(&messages, &ids));
    args
}

/// A message of a change, with its deliver-by as a time in milliseconds since 1970, which `ms_until` in `saga.sql` expects.
fn with_time(change: &Change, message: &Message) -> Message {
    let since = |at: Timestamp| at.since(Timestamp::from_micros(0));
    Message {
        deliver_in: change.deliver_by(message).map(since),
        ..message.clone()
    }
}

/// The arguments of `saga_write` and what goes with it, for several changes.
fn change_args(changes: &[&Change]) -> Result<Vec<Arg>, Error> {
    let texts = |f: &dyn Fn(&Change) -> Option<String>| Arg::Texts(Some(changes.iter().map(|c| f(c)).collect()));
    let snapshots: Result<Vec<_>, _> = changes.iter().map(|c| snapshot_json(&c.snapshot).map(Some)).collect();
    let numbered = || (1..).zip(changes.iter());
    let carriers: Vec<(i64, MessageId)> = numbered()
        .flat_map(|(o, c)| c.snapshot.carriers().map(move |id| (o, id)))
        .collect();
    let back: Vec<_> = numbered()
        .flat_map(|(o, c)| c.withdraw.iter().map(move |one| (o, one)))
        .collect();
    let log: Vec<(i64, &Happened)> = numbered()
        .flat_map(|(o, c)| c.log.iter().map(move |line| (o, line)))
        .collect();
    let sends: Vec<_> = numbered()
        .flat_map(|(o, c)| c.sends.iter().map(move |message| (o, with_time(c, message))))
        .collect();
    let long = |n: u64| Some(i64::try_from(n).unwrap_or(i64::MAX));
    let mut args = vec![
        Arg::Uuids(Some(changes.iter().map(|c| Some(c.owner.id.0)).collect())),
        Arg::Longs(Some(changes.iter().map(|c| long(c.expected)).collect())),
        texts(&|c| Some(c.state_words().0.to_owned())),
        texts(&|c| c.state_words().1.map(str::to_owned)),
        Arg::Flags(Some(changes.iter().map(|c| c.snapshot.paused).collect())),
        Arg::Flags(Some(changes.iter().map(|c| c.snapshot.ended.is_some()).collect())),
        Arg::Texts(Some(snapshots?)),
        texts(&|c| Some(error_text(&c.actor))),
        texts(&|c| c.audit.as_ref().map(|(action, _)| (*action).to_owned())),
        texts(&|c| c.audit.as_ref().map(|(_, note)| note.clone())),
        Arg::Longs(Some(carriers.iter().map(|(o, _)| Some(*o)).collect())),
        Arg::Uuids(Some(carriers.iter().map(|(_, id)| Some(id.0)).collect())),
        Arg::Longs(Some(back.iter().map(|(o, _)| Some(*o)).collect())),
        Arg::Uuids(Some(back.iter().map(|(_, one)| Some(one.message.0)).collect())),
        Arg::Longs(Some(back.iter().map(|(_, one)| long(one.epoch)).collect())),
        Arg::Longs(Some(log.iter().map(|(o, _)| Some(*o)).collect())),
    ];
    args.extend(log_args(&log.iter().map(|(_, line)| *line).collect::<Vec<_>>()));
    args.extend(send_args(sends));
    Ok(args)
}

/// The call that settles these, which are all of sagas.
fn settle_call(schema: &Schema, batch: &[&Settlement]) -> Result<Call, Error> {
    let changes: Vec<&Change> = batch.iter().filter_map(|s| s.saga.as_deref()).collect();
    let mut args = settle::args(batch);
    args.extend(change_args(&changes)?);
    Ok(Call::new(schema, "saga_settle", args))
}

impl Postgres {
    /// Settles messages of sagas: all together first. If what one of them sends is refused, halves, until the one that is to blame stands alone.
    pub(crate) async fn settle_sagas(
        &self,
        batch: &[Settlement],
        at: Vec<usize>,
    ) -> Result<Vec<(usize, Verdict)>, Error> {
        let mut done = Vec::with_capacity(at.len());
        let mut todo = vec![at];
        // Ends: each round settles a group or makes it smaller.
        while let Some(group) = todo.pop() {
            if group.is_empty() {
                continue;
            }
            let chosen: Vec<_> = group.iter().map(|i| &batch[*i]).collect();
            let call = settle_call(&self.schema, &chosen)?;
            match self.query(&call.sql, &call.typed()).await {
                Ok(rows) => {
                    let answers = answer(rows)?.unwrap_or_default();
                    if answers.len() != group.len() {
                        let problem = format!("{} answers for {} settlements", answers.len(), group.len());
                        return Err(Error::Internal(problem.into()));
                    }
                    let verdicts = answers.iter().map(|word| verdict(word.as_deref()));
                    done.extend(group.into_iter().zip(verdicts));
                }
                // Only what one of them sends can be to blame.
                Err(e) if !matches!(e, Error::Invalid(_) | Error::DedupeConflict { .. }) => return Err(e),
                Err(e) if group.len() == 1 => done.push((group[0], Verdict::Refused(e))),
                Err(_) => {
                    let (left, right) = group.split_at(group.len() / 2);
                    todo.extend([right.to_vec(), left.to_vec()]);
                }
            }
        }
        Ok(done)
    }

    pub(crate) async fn load(&self, ids: &[SagaId]) -> Result<Vec<Found>, Error> {
        let wanted: Vec<_> = ids.iter().map(|id| id.0).collect();
        let sql = format!("SELECT * FROM {}.saga_load($1)", self.schema);
        let mut found: Vec<Found> = ids.iter().map(|_| Ok(None)).collect();
        for row in self.query(&sql, &[(&wanted, Type::UUID_ARRAY)]).await? {
            let at = number::<usize>(&row, "o")?.saturating_sub(1);
            if let Some(place) = found.get_mut(at) {
                *place = loaded(&row, self.options.limits.payload_bytes).map(Some);
            }
        }
        Ok(found)
    }

    pub(crate) async fn change(&self, change: &Change) -> Result<Verdict, Error> {
        let call = Call::new(&self.schema, "saga_change", change_args(&[change])?);
        match self.query(&call.sql, &call.typed()).await {
            Ok(rows) => {
                let answer: Vec<_> = answer(rows)?.into_iter().flatten().flatten().collect();
                Ok(verdict(answer.first().map(String::as_str)))
            }
            Err(e @ (Error::Invalid(_) | Error::DedupeConflict { .. })) => Ok(Verdict::Refused(e)),
            Err(e) => Err(e),
        }
    }

    pub(crate) async fn list_sagas(&self, filter: &SagaFilter) -> Result<SagaPage, Error> {
        let (state, reason) = (filter.state.map(|s| s.as_str()), filter.reason.map(|r| r.as_str()));
        let limit = i64::from(filter.page_size() + 1);
        let below = filter.below.unwrap_or(i64::MAX);
        let args: Args<'_> = &[
            (&below, Type::INT8),
            (&filter.namespace, Type::TEXT),
            (&filter.tenant, Type::TEXT),
            (&filter.name, Type::TEXT),
            (&filter.key, Type::TEXT),
            (&state, Type::TEXT),
            (&reason, Type::TEXT),
            (&limit, Type::INT8),
        ];
        let sql = "SELECT * FROM posthouse.sagas s WHERE s.seq < $1 AND ($2 IS NULL OR s.namespace = $2) AND ($3 IS NULL OR s.tenant = $3) AND ($4 IS NULL OR s.name = $4) AND ($5 IS NULL OR s.key = $5) AND ($6 IS NULL OR s.state = $6) AND ($7 IS NULL OR s.reason = $7) ORDER BY s.seq DESC LIMIT $8";
        let rows = self.query(&self.schema.apply(sql), args).await?;
        let rows: Result<Vec<_>, _> = rows.iter().map(listed).collect();
        Ok(SagaPage::of(rows?, filter))
    }

    pub(crate) async fn log_of(&self, id: SagaId, after: u64, limit: u32) -> Result<Vec<LogLine>, Error> {
        let (after, limit) = (i64::try_from(after).unwrap_or(i64::MAX), i64::from(limit));
        // A saga without a line has just been started, or is not there.
        let sql = "SELECT h.n, h.revision, h.at, h.actor, h.what, h.step, h.detail FROM posthouse.sagas s LEFT JOIN LATERAL (SELECT h.* FROM posthouse.saga_history h WHERE h.saga = s.id AND h.n > $2 ORDER BY h.n LIMIT $3) h ON true WHERE s.id = $1 ORDER BY h.n";
        let args: Args<'_> = &[(&id.0, Type::UUID), (&after, Type::INT8), (&limit, Type::INT8)];
        let rows = self.query(&self.schema.apply(sql), args).await?;
        if rows.is_empty() {
            return Err(Error::NoSaga(id));
        }
        let there = rows
            .iter()
            .filter(|row| !matches!(row.try_get::<_, Option<i32>>("n"), Ok(None)));
        there.map(log_line).collect()
    }
}

fn verdict(word: Option<&str>) -> Verdict {
    match word {
        Some("settled" | "repeated") => Verdict::Settled,
        Some("stale") => Verdict::Stale,
        _ => Verdict::LeaseLost,
    }
}

/// A row of `sagas` as it is listed. One that cannot be read is marked, so that it does not hide the rest of its page.
fn listed(row: &Row) -> Result<SagaRow, Error> {
    let why = match saga_row(row) {
        Ok(row) => return Ok(row),
        Err(why) => cause(why),
    };
    let (id, seq) = (SagaId(get(row, "id")?), get(row, "seq")?);
    let text = |name: &str| get(row, name).unwrap_or_default();
    let view = SagaRow::unreadable(id, seq, why);
    Ok(SagaRow {
        namespace: text("namespace"),
        tenant: text("tenant"),
        name: text("name"),
        key: text("key"),
        state: word(row, "state").unwrap_or(view.state),
        created_at: at(row, "created_at").unwrap_or(view.created_at),
        updated_at: at(row, "updated_at").unwrap_or(view.updated_at),
        ..view
    })
}

fn saga_row(row: &Row) -> Result<SagaRow, Error> {
    let reason: Option<&str> = get(row, "reason")?;
    Ok(SagaRow {
        id: SagaId(get(row, "id")?),
        seq: get(row, "seq")?,
        namespace: get(row, "namespace")?,
        tenant: get(row, "tenant")?,
        name: get(row, "name")?,
        version: get::<i32>(row, "version")?.unsigned_abs(),
        key: get(row, "key")?,
        state: word(row, "state")?,
        reason: reason.map(str::parse).transpose()?,
        paused: get(row, "paused")?,
        revision: number(row, "revision")?,
        created_at: at(row, "created_at")?,
        updated_at: at(row, "updated_at")?,
        finished_at: when(row, "finished_at")?,
        unreadable: None,
    })
}

/// `most` is what this handle sends at most, whatever the store takes.
fn loaded(row: &Row, most: usize) -> Result<Loaded, Error> {
    let payload_bytes: i32 = get(row, "payload_bytes")?;
    let kept = (get(row, "body")?, get(row, "snapshot")?);
    let most = most.min(payload_bytes.unsigned_abs() as usize);
    Loaded::of(saga_row(row)?, kept, |_| live(row), at(row, "now")?, most)
}

fn live(row: &Row) -> Result<Live, Error> {
    let ids: Option<Vec<Uuid>> = get(row, "message")?;
    let words: Option<Vec<String>> = get(row, "standing")?;
    let epochs: Option<Vec<i64>> = get(row, "epoch")?;
    let attempts: Option<Vec<i64>> = get(row, "attempts")?;
    let numbers = epochs.unwrap_or_default().into_iter().zip(attempts.unwrap_or_default());
    let standing = |(word, (epoch, attempts)): (String, (i64, i64))| {
        let epoch = epoch.unsigned_abs();
        match word.as_str() {
            "leased" => Standing::Leased,
            "pending" => Standing::Pending {
                epoch,
                attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
            },
            _ => Standing::Dead { epoch },
        }
    };
    let standings = words.unwrap_or_default().into_iter().zip(numbers).map(standing);
    let ids = ids.unwrap_or_default().into_iter().map(MessageId);
    Ok(ids.zip(standings).collect())
}

fn log_line(row: &Row) -> Result<LogLine, Error> {
    Ok(LogLine {
        n: u64::from(get::<i32>(row, "n")?.unsigned_abs()),
        revision: number(row, "revision")?,
        at: at(row, "at")?,
        actor: get(row, "actor")?,
        what: get(row, "what")?,
        step: get(row, "step")?,
        detail: get(row, "detail")?,
    })
}
