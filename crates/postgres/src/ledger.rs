//! The ledger: the verbs of a holder, in a transaction of their own or in the caller's.

use posthouse_core::{
    Digest, Error, Headers, Lease, LeaseToken, MessageId,
    headers::to_json,
    lease::check_lease,
    ledger::{Begin, Begun, Clearance, Conclusion, EntryKey, Fenced, Hold, Kept, check_consumer, check_point},
};
use std::time::Duration;
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

use crate::{Arg, Call, Outbox, Postgres, Run, Schema, call::Answer, enqueue::millis, error::from_driver, store::Args};

impl Outbox {
    /// Ends an entry of the ledger in the caller's own transaction: the effect and its record commit together or not at all.
    ///
    /// Commit only what is [`Fenced::Done`]. Else roll back: somebody else may have done it, or you did, and did not hear of it.
    pub async fn conclude_in<T: Run>(&self, tx: &mut T, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        fenced(tx.run(&conclude(self.schema(), hold, conclusion)).await?)
    }

    /// Goes on for `lease` from now, inside the transaction: for whoever takes longer than his lease before he commits.
    pub async fn renew_in<T: Run>(&self, tx: &mut T, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        fenced(tx.run(&renew(self.schema(), hold, lease)?).await?)
    }

    /// Comes to a point from which another holder could go on, with what the transaction did to get there.
    pub async fn reach_in<T: Run>(&self, tx: &mut T, hold: &Hold, checkpoint: &str) -> Result<Fenced, Error> {
        check_point(checkpoint)?;
        let args = vec![
            key(&hold.key),
            token(hold),
            Arg::Texts(Some(vec![Some(checkpoint.to_owned())])),
        ];
        fenced(tx.run(&Call::new(self.schema(), "reach_in", args)).await?)
    }

    /// Leaves an entry to a message that this transaction has enqueued under it ([`Message::ledger`](posthouse_core::Message::ledger)): it is held until that
    /// has ended, however long that takes.
    pub async fn leave_in<T: Run>(&self, tx: &mut T, hold: &Hold, message: MessageId) -> Result<Fenced, Error> {
        let args = vec![key(&hold.key), token(hold), Arg::Uuids(Some(vec![Some(message.0)]))];
        fenced(tx.run(&Call::new(self.schema(), "leave_in", args)).await?)
    }

    /// Whether a consumer has this message for the first time. It has had it if and only if the transaction commits.
    pub async fn once<T: Run>(&self, tx: &mut T, consumer: &str, message: MessageId) -> Result<bool, Error> {
        check_consumer(consumer)?;
        let args = vec![
            Arg::Texts(Some(vec![Some(consumer.to_owned())])),
            Arg::Uuids(Some(vec![Some(message.0)])),
        ];
        let answer = tx.run(&Call::new(self.schema(), "once_in", args)).await?;
        Ok(word(&answer)? == "first")
    }
}

impl Postgres {
    pub(crate) async fn begin_entry(&self, ask: &Begin) -> Result<Begun, Error> {
        let EntryKey { tenant, scope, key } = &ask.key;
        let seconds = [ask.lease, ask.retention].map(|d| d.as_secs_f64());
        let args: Args<'_> = &[
            (scope, Type::TEXT),
            (key, Type::TEXT),
            (&ask.fingerprint.0.as_bytes(), Type::BYTEA),
            (tenant, Type::TEXT),
            (&seconds[0], Type::FLOAT8),
            (&seconds[1], Type::FLOAT8),
        ];
        let sql = format!("SELECT * FROM {}.ledger_begin($1,$2,$3,$4,$5,$6)", self.schema);
        let rows = self.query(&sql, args).await?;
        let row = rows.first().ok_or_else(|| Error::Internal("no answer".into()))?;
        match get::<&str>(row, "answer")? {
            "acquired" => Ok(Begun::Acquired(Hold {
                key: ask.key.clone(),
                token: LeaseToken(get(row, "token")?),
                taken_over: get(row, "taken_over")?,
                checkpoint: get(row, "checkpoint")?,
            })),
            "busy" => Ok(Begun::Busy {
                retry_after: retry_after(row)?,
            }),
            "replay" => Ok(Begun::Replay(kept(row)?)),
            "failed" => Ok(Begun::Failed(kept(row)?)),
            "mismatch" => Ok(Begun::Mismatch),
            other => Err(Error::Internal(format!("the ledger answered {other:?}").into())),
        }
    }

    /// Whether messages may be sent, as far as the ledger knows.
    pub(crate) async fn clear_messages(&self, leases: &[Lease]) -> Result<Vec<Clearance>, Error> {
        let ids: Vec<_> = leases.iter().map(|lease| lease.id.0).collect();
        let tokens: Vec<_> = leases.iter().map(|lease| lease.token.0).collect();
        let args: Args<'_> = &[(&ids, Type::UUID_ARRAY), (&tokens, Type::UUID_ARRAY)];
        let sql = format!(
            "SELECT c.* FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY u(id, token, o) CROSS JOIN LATERAL {}.ledger_clear(u.id, u.token) c ORDER BY u.o",
            self.schema
        );
        let rows = self.query(&sql, args).await?;
        let read = |row: &Row| match get::<&str>(row, "answer")? {
            "send" => Ok(Clearance::Send),
            "done" => Ok(Clearance::Done(kept(row)?)),
            "conflict" => Ok(Clearance::Conflict),
            "wait" => Ok(Clearance::Wait(retry_after(row)?)),
            other => Err(Error::Internal(format!("the ledger answered {other:?}").into())),
        };
        rows.iter().map(read).collect()
    }

    pub(crate) async fn conclude_entry(&self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        self.fenced(conclude(&self.schema, hold, conclusion)).await
    }

    pub(crate) async fn renew_entry(&self, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        self.fenced(renew(&self.schema, hold, lease)?).await
    }

    async fn fenced(&self, call: Call) -> Result<Fenced, Error> {
        let rows = self.query(&call.sql, &call.typed()).await?;
        fenced(crate::call::answer(rows)?)
    }
}

fn renew(schema: &Schema, hold: &Hold, lease: Duration) -> Result<Call, Error> {
    check_lease(lease)?;
    let args = vec![key(&hold.key), token(hold), Arg::Longs(Some(vec![Some(millis(lease))]))];
    Ok(Call::new(schema, "renew_entry", args))
}

fn conclude(schema: &Schema, hold: &Hold, conclusion: &Conclusion) -> Call {
    let (status, kept) = match conclusion {
        Conclusion::Succeeded(kept) => (1, kept.clone()),
        Conclusion::Failed(kept) => (2, kept.clone()),
        Conclusion::Released { error } => (0, error.as_ref().map(Kept::failure).unwrap_or_default()),
    };
    let kept = kept.clean();
    let headers = to_json(&kept.headers);
    let args = vec![
        key(&hold.key),
        token(hold),
        Arg::Longs(Some(vec![Some(status), kept.status.map(i64::from)])),
        Arg::Texts(Some(vec![headers, kept.error])),
        Arg::Blobs(kept.body.map(|body| vec![body])),
        Arg::Blobs(kept.digest.map(|digest| vec![digest.0.to_vec()])),
    ];
    Call::new(schema, "conclude_in", args)
}

fn key(key: &EntryKey) -> Arg {
    let parts = [&key.tenant, &key.scope, &key.key];
    Arg::Texts(Some(parts.map(|part| Some(part.clone())).to_vec()))
}

fn token(hold: &Hold) -> Arg {
    Arg::Uuids(Some(vec![Some(hold.token.0)]))
}

fn fenced(answer: Answer) -> Result<Fenced, Error> {
    match word(&answer)? {
        "done" => Ok(Fenced::Done),
        "before" => Ok(Fenced::Before),
        _ => Ok(Fenced::LeaseLost),
    }
}

fn word(answer: &Answer) -> Result<&str, Error> {
    let first = answer.as_deref().and_then(|words| words.first());
    first
        .and_then(Option::as_deref)
        .ok_or_else(|| Error::Internal("the ledger answered nothing".into()))
}

fn get<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, Error> {
    row.try_get(name).map_err(from_driver)
}

fn retry_after(row: &Row) -> Result<Duration, Error> {
    Ok(Duration::try_from_secs_f64(get(row, "retry_after")?).unwrap_or_default())
}

fn kept(row: &Row) -> Result<Kept, Error> {
    let headers: Option<serde_json::Value> = get(row, "headers")?;
    let headers = headers.map_or_else(|| Ok(Headers::new()), serde_json::from_value);
    let status: Option<i32> = get(row, "http_status")?;
    Ok(Kept {
        status: status.and_then(|status| u16::try_from(status).ok()),
        headers: headers.map_err(|e| Error::Internal(e.into()))?,
        body: get(row, "result")?,
        digest: get::<Option<&[u8]>>(row, "result_digest")?.map(digest).transpose()?,
        error: get(row, "error")?,
    })
}

fn digest(bytes: &[u8]) -> Result<Digest, Error> {
    bytes
        .try_into()
        .map(Digest)
        .map_err(|_| Error::Internal("a digest is not of 32 bytes".into()))
}
