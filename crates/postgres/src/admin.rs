//! The operator's hand: thin calls of the functions in `operator.sql` and readings of the views.

use async_trait::async_trait;
// An operator's words are cleaned and cut as a destination's are; PostgreSQL has no NUL in text.
use posthouse_core::{
    Admin, Attempt, AuditEntry, Error, Filter, MessageId, MessageView, Page, Pruned,
    admin::{check_deliver_in, check_prune_limit},
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

    async fn verb(&self, sql: &str, id: MessageId, actor: &str, text: &str) -> Result<(), Error> {
        let (actor, text) = (error_text(actor), error_text(text));
        self.rows(sql, &[(&id.0, Type::UUID), (&actor, Type::TEXT), (&text, Type::TEXT)])
            .await
            .map(drop)
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
        let state = filter.state.map(|s| s.as_str());
        let limit = i64::from(filter.page_size()) + 1;
        let args: Args<'_> = &[
            (&filter.namespace, Type::TEXT),
            (&filter.tenant, Type::TEXT),
            (&filter.topic, Type::TEXT),
            (&state, Type::TEXT),
            (&filter.order_key, Type::TEXT),
            (&filter.before, Type::INT8),
            (&limit, Type::INT8),
        ];
        let rows = self.rows(include_str!("../sql/list.sql"), args).await?;
        let views: Result<Vec<_>, _> = rows.iter().map(rows::message_view).collect();
        Ok(Page::of(views?, filter))
    }

    async fn attempts(&self, id: MessageId) -> Result<Vec<Attempt>, Error> {
        let rows = self
            .rows(include_str!("../sql/attempts_of.sql"), &[(&id.0, Type::UUID)])
            .await?;
        rows.iter().map(rows::attempt).collect()
    }

    async fn replay(
        &self,
        id: MessageId,
        actor: &str,
        reason: &str,
        deliver_in: Option<Duration>,
    ) -> Result<(), Error> {
        check_deliver_in(deliver_in)?;
        let (actor, reason) = (error_text(actor), error_text(reason));
        let within = deliver_in.map(millis);
        let args: Args<'_> = &[
            (&id.0, Type::UUID),
            (&actor, Type::TEXT),
            (&reason, Type::TEXT),
            (&within, Type::INT8),
        ];
        self.rows(
            "SELECT posthouse.replay($1, $2, $3, $4 * interval '1 millisecond')",
            args,
        )
        .await
        .map(drop)
    }

    async fn quarantine(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        self.verb("SELECT posthouse.quarantine($1, $2, $3)", id, actor, note)
            .await
    }

    async fn cancel(&self, id: MessageId, actor: &str, reason: &str) -> Result<(), Error> {
        self.verb("SELECT posthouse.cancel($1, $2, $3)", id, actor, reason)
            .await
    }

    async fn resolve(&self, id: MessageId, actor: &str, receipt: &str) -> Result<(), Error> {
        self.verb("SELECT posthouse.resolve($1, $2, $3)", id, actor, receipt)
            .await
    }

    async fn discard(&self, id: MessageId, actor: &str, reason: &str) -> Result<(), Error> {
        self.verb("SELECT posthouse.discard($1, $2, $3)", id, actor, reason)
            .await
    }

    async fn prune(&self, older_than: Duration, limit: u32) -> Result<Pruned, Error> {
        check_prune_limit(limit)?;
        let (older, limit) = (millis(older_than), i32::try_from(limit).unwrap_or(i32::MAX));
        let sql = "SELECT messages, dedupe_keys, more FROM posthouse.prune($1 * interval '1 millisecond', $2)";
        let rows = self.rows(sql, &[(&older, Type::INT8), (&limit, Type::INT4)]).await?;
        let row = rows
            .first()
            .ok_or_else(|| Error::Internal("prune answered nothing".into()))?;
        let get = |at: usize| {
            row.try_get::<_, i64>(at)
                .map_err(from_driver)
                .map(|n| u64::try_from(n).unwrap_or(0))
        };
        Ok(Pruned {
            messages: get(0)?,
            dedupe_keys: get(1)?,
            more: row.try_get(2).map_err(from_driver)?,
        })
    }

    async fn audit(&self, id: Option<MessageId>, limit: u32) -> Result<Vec<AuditEntry>, Error> {
        let (id, limit) = (id.map(|id| id.0), i64::from(limit));
        let rows = self
            .rows(
                include_str!("../sql/audit_of.sql"),
                &[(&id, Type::UUID), (&limit, Type::INT8)],
            )
            .await?;
        rows.iter().map(rows::audit_entry).collect()
    }
}
