//! The operator's hand: thin calls of the functions in `operator.sql` and readings of the views.

use async_trait::async_trait;
// An operator's words are cleaned and cut as a destination's are; PostgreSQL has no NUL in text.
use posthouse_core::{
    Admin, Attempt, AuditEntry, AuditFilter, Counts, Error, Facts, Filter, MessageId, MessageView, Page, Pause, Prune,
    Pruned, RelayView, SagaId,
    admin::{LOOKED_AT_MOST, check_cap, check_deliver_in},
    ledger::{EntryFilter, EntryKey, EntryPage, EntryView, Status},
    presence::check_destination,
    saga::{LogLine, SagaFilter, SagaPage},
    text::error_text,
};
use std::time::Duration;
use tokio_postgres::{Row, types::Type};

use crate::{Postgres, enqueue::millis, error::from_driver, rows, store::Args};

impl Postgres {
    /// Runs one of the fixed statements of this file, written for the schema `posthouse`.
    async fn rows(&self, sql: &str, args: Args<'_>) -> Result<Vec<Row>, Error> {
        let sql = self.schema.apply(sql);
        self.query(&sql, args).await
    }

    async fn verb(&self, sql: &str, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        let (actor, note) = (error_text(actor), error_text(note));
        self.rows(sql, &[(&id.0, Type::UUID), (&actor, Type::TEXT), (&note, Type::TEXT)])
            .await
            .map(drop)
    }

    /// Pauses or resumes a destination.
    async fn switch(&self, sql: &str, destination: &str, actor: &str, note: &str) -> Result<Vec<Row>, Error> {
        check_destination(destination)?;
        let (actor, note) = (error_text(actor), error_text(note));
        let args: Args<'_> = &[(&destination, Type::TEXT), (&actor, Type::TEXT), (&note, Type::TEXT)];
        self.rows(sql, args).await
    }
}

#[async_trait]
impl Admin for Postgres {
    async fn find(&self, id: MessageId) -> Result<Option<MessageView>, Error> {
        let rows = self
            .rows("SELECT * FROM posthouse.messages WHERE id = $1", &[(&id.0, Type::UUID)])
            .await?;
        rows.first().map(rows::message_view).transpose()
    }

    async fn list(&self, filter: &Filter) -> Result<Page, Error> {
        let (state, reason) = (filter.state.map(|s| s.as_str()), filter.reason.map(|r| r.as_str()));
        let (since, until) = (filter.since.map(rows::system_time), filter.until.map(rows::system_time));
        let (limit, most) = (
            i32::try_from(filter.page_size() + 1).unwrap_or(i32::MAX),
            i32::try_from(LOOKED_AT_MOST).unwrap_or(i32::MAX),
        );
        let args: Args<'_> = &[
            (&filter.namespace, Type::TEXT),
            (&filter.tenant, Type::TEXT),
            (&filter.topic, Type::TEXT),
            (&state, Type::TEXT),
            (&filter.order_key, Type::TEXT),
            (&reason, Type::TEXT),
            (&filter.code, Type::TEXT),
            (&since, Type::TIMESTAMPTZ),
            (&until, Type::TIMESTAMPTZ),
            (&filter.oldest_first, Type::BOOL),
            (&filter.beyond, Type::INT8),
            (&limit, Type::INT4),
            (&most, Type::INT4),
        ];
        let sql = "SELECT seqs, looked_to FROM posthouse.find_messages($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13)";
        let rows = self.rows(sql, args).await?;
        let row = one(&rows)?;
        let (mut seqs, looked_to): (Vec<i64>, Option<i64>) = (
            row.try_get(0).map_err(from_driver)?,
            row.try_get(1).map_err(from_driver)?,
        );
        let size = filter.page_size() as usize;
        let more = seqs.len() > size;
        seqs.truncate(size);
        let sql = "SELECT v.* FROM pg_catalog.unnest($1) WITH ORDINALITY u(seq, o) CROSS JOIN LATERAL (SELECT v.* FROM posthouse.messages v WHERE v.seq = u.seq OFFSET 0) v ORDER BY u.o";
        let rows = self.rows(sql, &[(&seqs, Type::INT8_ARRAY)]).await?;
        let messages: Result<Vec<_>, _> = rows.iter().map(rows::message_view).collect();
        Ok(Page {
            messages: messages?,
            next: if more { seqs.last().copied() } else { looked_to },
        })
    }

    async fn counts_to(&self, cap: u32) -> Result<Counts, Error> {
        check_cap(cap)?;
        let cap = i32::try_from(cap).unwrap_or(i32::MAX);
        let rows = self
            .rows("SELECT * FROM posthouse.counts($1)", &[(&cap, Type::INT4)])
            .await?;
        rows::counts(one(&rows)?)
    }

    async fn facts(&self, id: MessageId) -> Result<Option<Facts>, Error> {
        let Some(message) = self.find(id).await? else {
            return Ok(None);
        };
        let rows = self
            .rows("SELECT * FROM posthouse.bearing($1)", &[(&id.0, Type::UUID)])
            .await?;
        let (ahead, blocks, resolved, now) = rows::bearing(one(&rows)?)?;
        let ahead = match ahead {
            Some(ahead) => self.find(ahead).await?,
            None => None,
        };
        Ok(Some(Facts {
            now,
            message,
            last: self.attempts(id).await?.pop(),
            ahead,
            blocks,
            resolved,
            relays: self.relays().await?,
            pauses: self.pauses().await?,
        }))
    }

    async fn attempts(&self, id: MessageId) -> Result<Vec<Attempt>, Error> {
        let rows = self
            .rows(include_str!("../sql/attempts_of.sql"), &[(&id.0, Type::UUID)])
            .await?;
        rows.iter().map(rows::attempt).collect()
    }

    async fn replay(&self, id: MessageId, actor: &str, note: &str, deliver_in: Option<Duration>) -> Result<(), Error> {
        check_deliver_in(deliver_in)?;
        let (actor, note) = (error_text(actor), error_text(note));
        let within = deliver_in.map(millis);
        let args: Args<'_> = &[
            (&id.0, Type::UUID),
            (&actor, Type::TEXT),
            (&note, Type::TEXT),
            (&within, Type::INT8),
        ];
        self.rows(
            "SELECT posthouse.replay($1, $2, $3, $4::float8 * interval '1 millisecond')",
            args,
        )
        .await
        .map(drop)
    }

    async fn quarantine(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        self.verb("SELECT posthouse.quarantine($1, $2, $3)", id, actor, note)
            .await
    }

    async fn cancel(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        self.verb("SELECT posthouse.cancel($1, $2, $3)", id, actor, note).await
    }

    async fn resolve(&self, id: MessageId, actor: &str, note: &str, receipt: &str) -> Result<(), Error> {
        let [actor, note, receipt] = [actor, note, receipt].map(error_text);
        let args: Args<'_> = &[
            (&id.0, Type::UUID),
            (&actor, Type::TEXT),
            (&note, Type::TEXT),
            (&receipt, Type::TEXT),
        ];
        self.rows("SELECT posthouse.resolve($1, $2, $3, $4)", args)
            .await
            .map(drop)
    }

    async fn discard(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        self.verb("SELECT posthouse.discard($1, $2, $3)", id, actor, note).await
    }

    async fn prune(&self, prune: &Prune) -> Result<Pruned, Error> {
        let actor = prune.check()?;
        let (older, limit) = (millis(prune.older_than), i32::try_from(prune.limit).unwrap_or(i32::MAX));
        let (states, note) = (prune.states.as_str(), error_text(&prune.note));
        let args: Args<'_> = &[
            (&older, Type::INT8),
            (&limit, Type::INT4),
            (&states, Type::TEXT),
            (&actor, Type::TEXT),
            (&note, Type::TEXT),
            (&prune.dry_run, Type::BOOL),
            (&prune.audit, Type::INT8),
        ];
        let sql = "SELECT * FROM posthouse.prune($1::float8 * interval '1 millisecond', $2, $3, $4, $5, $6, $7)";
        rows::pruned(one(&self.rows(sql, args).await?)?)
    }

    async fn entry(&self, key: &EntryKey) -> Result<Option<EntryView>, Error> {
        let args: Args<'_> = &[
            (&key.tenant, Type::TEXT),
            (&key.scope, Type::TEXT),
            (&key.key, Type::TEXT),
        ];
        let sql = "SELECT * FROM posthouse.entries WHERE tenant = $1 AND scope = $2 AND key = $3";
        self.rows(sql, args).await?.first().map(rows::entry_view).transpose()
    }

    async fn entries(&self, filter: &EntryFilter) -> Result<EntryPage, Error> {
        let most = i32::try_from(LOOKED_AT_MOST).unwrap_or(i32::MAX);
        let limit = i32::try_from(filter.page_size()).unwrap_or(i32::MAX);
        let EntryKey { tenant, scope, key } = filter.start();
        let (after, status) = (vec![tenant, scope, key], filter.status.map(Status::as_str));
        let args: Args<'_> = &[
            (&filter.tenant, Type::TEXT),
            (&filter.scope, Type::TEXT),
            (&status, Type::TEXT),
            (&after, Type::TEXT_ARRAY),
            (&limit, Type::INT4),
            (&most, Type::INT4),
        ];
        let found = self
            .rows("SELECT * FROM posthouse.find_entries($1,$2,$3,$4,$5,$6)", args)
            .await?;
        let found = one(&found)?;
        let list = |name: &str| found.try_get::<_, Vec<String>>(name).map_err(from_driver);
        let looked_to: Option<Vec<String>> = found.try_get("looked_to").map_err(from_driver)?;
        let lists = [list("tenants")?, list("scopes")?, list("keys")?];
        let args: Args<'_> = &[
            (&lists[0], Type::TEXT_ARRAY),
            (&lists[1], Type::TEXT_ARRAY),
            (&lists[2], Type::TEXT_ARRAY),
        ];
        let sql = "SELECT e.* FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3)) WITH ORDINALITY u(t, s, k, o) CROSS JOIN LATERAL (SELECT e.* FROM posthouse.entries e WHERE e.tenant = u.t AND e.scope = u.s AND e.key = u.k OFFSET 0) e ORDER BY u.o";
        let entries: Result<Vec<_>, _> = self.rows(sql, args).await?.iter().map(rows::entry_view).collect();
        let next = looked_to.and_then(|key| <[String; 3]>::try_from(key).ok());
        Ok(EntryPage {
            entries: entries?,
            next: next.map(|[tenant, scope, key]| EntryKey::new(scope, key).tenant(tenant)),
        })
    }

    async fn sagas(&self, filter: &SagaFilter) -> Result<SagaPage, Error> {
        self.list_sagas(filter).await
    }

    async fn saga_log(&self, id: SagaId, after: u64, limit: u32) -> Result<Vec<LogLine>, Error> {
        self.log_of(id, after, limit).await
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error> {
        let (id, limit) = (filter.id.map(|id| id.0), i64::from(filter.page_size()));
        let args: Args<'_> = &[
            (&id, Type::UUID),
            (&filter.actor, Type::TEXT),
            (&filter.action, Type::TEXT),
            (&filter.before, Type::INT8),
            (&limit, Type::INT8),
        ];
        let rows = self.rows(include_str!("../sql/audit_of.sql"), args).await?;
        rows.iter().map(rows::audit_entry).collect()
    }

    async fn relays(&self) -> Result<Vec<RelayView>, Error> {
        let sql = "SELECT name, info, started_at, seen_at, until > posthouse.clock() AS live FROM posthouse.relay ORDER BY name COLLATE \"C\"";
        self.rows(sql, &[]).await?.iter().map(rows::relay).collect()
    }

    async fn pauses(&self) -> Result<Vec<Pause>, Error> {
        let sql = "SELECT * FROM posthouse.pause ORDER BY destination COLLATE \"C\"";
        self.rows(sql, &[]).await?.iter().map(rows::pause).collect()
    }

    async fn pause(&self, destination: &str, actor: &str, note: &str) -> Result<(), Error> {
        let sql = "SELECT posthouse.pause_destination($1, $2, $3)";
        self.switch(sql, destination, actor, note).await.map(drop)
    }

    async fn resume(&self, destination: &str, actor: &str, note: &str) -> Result<bool, Error> {
        let sql = "SELECT posthouse.resume_destination($1, $2, $3)";
        let rows = self.switch(sql, destination, actor, note).await?;
        one(&rows)?.try_get(0).map_err(from_driver)
    }
}

fn one(rows: &[Row]) -> Result<&Row, Error> {
    rows.first()
        .ok_or_else(|| Error::Internal("the database answered nothing".into()))
}
