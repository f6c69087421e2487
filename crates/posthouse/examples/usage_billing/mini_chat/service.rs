//! The transactions of the service, with sqlx. `Database`, `Outbox` and `BEGIN` are those of `postgres.rs` or `sqlite.rs`, which
//! both have this file; an application with one database would write their names here, and nothing else would differ.

use super::{
    super::{Chat, Ending, Failure, Finalized, Turn, TurnId, UsageSnapshot},
    BEGIN, Database, Outbox,
};
use posthouse::{AnyStore, Enqueued};
use sqlx::{Pool, Transaction};

#[derive(Clone)]
pub struct Service {
    pool: Pool<Database>,
    outbox: Outbox,
}

impl Service {
    /// The finalization, in the caller's transaction.
    async fn finalize_in(
        &self,
        tx: &mut Transaction<'_, Database>,
        id: &TurnId,
        ending: Ending,
    ) -> Result<Finalized, Failure> {
        // Of all that try, one finds it running.
        let sql = "UPDATE minichat_turns SET state = $1 WHERE tenant_id = $2 AND turn_id = $3 AND request_id = $4 AND state = 'running'";
        let won = sqlx::query(sql)
            .bind(ending.as_str())
            .bind(&id.tenant)
            .bind(&id.turn)
            .bind(&id.request)
            .execute(&mut **tx)
            .await?;
        if won.rows_affected() == 0 {
            return Ok(Finalized::AlreadyFinal);
        }

        let usage = self.turn(tx, id).await?.settle(ending);
        let sql = "INSERT INTO minichat_quota (tenant_id, user_id, spent_tokens) VALUES ($1, $2, $3)
                   ON CONFLICT (tenant_id, user_id) DO UPDATE SET spent_tokens = minichat_quota.spent_tokens + excluded.spent_tokens";
        sqlx::query(sql)
            .bind(&usage.tenant_id)
            .bind(usage.user_id.as_deref().unwrap_or_default())
            .bind(usage.tokens())
            .execute(&mut **tx)
            .await?;

        match self.outbox.enqueue(tx, usage.message()?).await? {
            Enqueued::New(message) => Ok(Finalized::Won(usage, message)),
            // Only if somebody has set a final turn back to running. Its quota was settled with that message.
            Enqueued::Duplicate(message) => Err(format!("{} was settled before, with {message}", usage.key()).into()),
        }
    }

    async fn turn(&self, tx: &mut Transaction<'_, Database>, id: &TurnId) -> Result<Turn, Failure> {
        type Columns = (Option<String>, i64, String, i64, i64, i64, Option<i64>, Option<i64>);
        let sql = "SELECT user_id, policy_version, effective_model, max_output_tokens, prompt_tokens, streamed_bytes, reported_input, reported_output
                   FROM minichat_turns WHERE tenant_id = $1 AND turn_id = $2 AND request_id = $3";
        let row: Columns = sqlx::query_as(sql)
            .bind(&id.tenant)
            .bind(&id.turn)
            .bind(&id.request)
            .fetch_one(&mut **tx)
            .await?;
        let (user, policy_version, effective_model, max_output_tokens, prompt_tokens, streamed_bytes, input, output) =
            row;
        Ok(Turn {
            id: id.clone(),
            user,
            policy_version,
            effective_model,
            max_output_tokens,
            prompt_tokens,
            streamed_bytes,
            reported: input.zip(output),
        })
    }
}

impl Chat for Service {
    async fn install(url: &str) -> Result<(), Failure> {
        AnyStore::migrate(url).await?;
        let pool = Pool::<Database>::connect(url).await?;
        sqlx::raw_sql(include_str!("tables.sql")).execute(&pool).await?;
        pool.close().await;
        Ok(())
    }

    async fn open(url: &str) -> Result<Self, Failure> {
        Ok(Self {
            pool: Pool::connect(url).await?,
            outbox: Outbox::default(),
        })
    }

    async fn set_policy(&self, model: &str, max_output_tokens: i64) -> Result<i64, Failure> {
        let sql = "INSERT INTO minichat_policy SELECT coalesce(max(version), 0) + 1, $1, $2 FROM minichat_policy RETURNING version";
        let mut tx = self.pool.begin_with(BEGIN).await?;
        let version = sqlx::query_scalar(sql)
            .bind(model)
            .bind(max_output_tokens)
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(version)
    }

    async fn begin(&self, id: &TurnId, user: Option<&str>, prompt_tokens: i64) -> Result<(), Failure> {
        let sql = "INSERT INTO minichat_turns (tenant_id, turn_id, request_id, user_id, prompt_tokens, policy_version, effective_model, max_output_tokens)
                   SELECT $1, $2, $3, $4, $5, version, model, max_output_tokens FROM minichat_policy ORDER BY version DESC LIMIT 1";
        sqlx::query(sql)
            .bind(&id.tenant)
            .bind(&id.turn)
            .bind(&id.request)
            .bind(user)
            .bind(prompt_tokens)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn streamed(&self, id: &TurnId, bytes: i64, provider_response_id: &str) -> Result<(), Failure> {
        let sql = "UPDATE minichat_turns SET streamed_bytes = streamed_bytes + $1, provider_response_id = $2
                   WHERE tenant_id = $3 AND turn_id = $4 AND request_id = $5 AND state = 'running'";
        sqlx::query(sql)
            .bind(bytes)
            .bind(provider_response_id)
            .bind(&id.tenant)
            .bind(&id.turn)
            .bind(&id.request)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn reported(&self, id: &TurnId, input: i64, output: i64) -> Result<(), Failure> {
        let sql = "UPDATE minichat_turns SET reported_input = $1, reported_output = $2
                   WHERE tenant_id = $3 AND turn_id = $4 AND request_id = $5 AND state = 'running'";
        sqlx::query(sql)
            .bind(input)
            .bind(output)
            .bind(&id.tenant)
            .bind(&id.turn)
            .bind(&id.request)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn finalize(&self, id: &TurnId, ending: Ending) -> Result<Finalized, Failure> {
        let mut tx = self.pool.begin_with(BEGIN).await?;
        // After an error the transaction is dropped, which rolls it back.
        let finalized = self.finalize_in(&mut tx, id, ending).await?;
        tx.commit().await?;
        Ok(finalized)
    }

    async fn finalize_and_die(&self, id: &TurnId, ending: Ending) -> Result<Finalized, Failure> {
        let mut tx = self.pool.begin_with(BEGIN).await?;
        let finalized = self.finalize_in(&mut tx, id, ending).await?;
        tx.rollback().await?;
        Ok(finalized)
    }

    async fn state(&self, id: &TurnId) -> Result<String, Failure> {
        let sql = "SELECT state FROM minichat_turns WHERE tenant_id = $1 AND turn_id = $2 AND request_id = $3";
        let query = sqlx::query_scalar(sql)
            .bind(&id.tenant)
            .bind(&id.turn)
            .bind(&id.request);
        Ok(query.fetch_one(&self.pool).await?)
    }

    async fn spent(&self, tenant: &str, user: &str) -> Result<i64, Failure> {
        let sql = "SELECT spent_tokens FROM minichat_quota WHERE tenant_id = $1 AND user_id = $2";
        let spent: Option<i64> = sqlx::query_scalar(sql)
            .bind(tenant)
            .bind(user)
            .fetch_optional(&self.pool)
            .await?;
        Ok(spent.unwrap_or(0))
    }

    async fn book(&self, usage: &UsageSnapshot) -> Result<bool, Failure> {
        let sql =
            "INSERT INTO minichat_bills (usage_key, tenant_id, tokens) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        let booked = sqlx::query(sql)
            .bind(usage.key())
            .bind(&usage.tenant_id)
            .bind(usage.tokens())
            .execute(&self.pool)
            .await?;
        Ok(booked.rows_affected() == 1)
    }

    async fn bills(&self, tenant: &str) -> Result<Vec<(String, i64)>, Failure> {
        let sql = "SELECT usage_key, tokens FROM minichat_bills WHERE tenant_id = $1 ORDER BY usage_key";
        Ok(sqlx::query_as(sql).bind(tenant).fetch_all(&self.pool).await?)
    }
}
