//! The transaction that takes an order, on either database: the order, its message, and the entry that is left to the message.

use posthouse::{Error, Message, MessageId, idempotency::Hold, postgres, sqlite};
use sqlx::{PgPool, SqlitePool, postgres::PgConnectOptions, sqlite::SqliteConnectOptions};
use std::{future::Future, str::FromStr, time::Duration};

use super::{Failure, OrderRequest, TOPIC};

/// Where orders are kept.
pub trait Orders: Clone + Send + Sync + 'static {
    /// The outbox of its transactions.
    type Outbox: Clone + Send + Sync + 'static;

    fn open(url: &str) -> impl Future<Output = Result<Self, Failure>> + Send;
    fn outbox(&self) -> Self::Outbox;

    /// Takes an order: it is on record, the message is on its way, and the key is busy until that has ended; or nothing is.
    fn accept(
        &self,
        hold: &Hold<Self::Outbox>,
        order: &OrderRequest,
    ) -> impl Future<Output = Result<MessageId, Failure>> + Send;
}

fn message(order: &OrderRequest) -> Result<Message, Error> {
    Ok(Message::json(TOPIC, order)?)
}

#[derive(Clone)]
pub struct OnPostgres(PgPool);

impl Orders for OnPostgres {
    type Outbox = postgres::Outbox;

    async fn open(url: &str) -> Result<Self, Failure> {
        let pool = PgPool::connect_with(PgConnectOptions::from_str(url)?).await?;
        let table = "CREATE TABLE IF NOT EXISTS orders (account text NOT NULL, key text NOT NULL, symbol text NOT NULL, quantity bigint NOT NULL)";
        sqlx::query(table).execute(&pool).await?;
        Ok(Self(pool))
    }

    fn outbox(&self) -> postgres::Outbox {
        postgres::Outbox::default()
    }

    async fn accept(&self, hold: &Hold<postgres::Outbox>, order: &OrderRequest) -> Result<MessageId, Failure> {
        let mut tx = self.0.begin().await?;
        sqlx::query("INSERT INTO orders VALUES ($1, $2, $3, $4)")
            .bind(&hold.key().tenant)
            .bind(&hold.key().key)
            .bind(&order.symbol)
            .bind(i64::from(order.quantity))
            .execute(&mut *tx)
            .await?;
        let id = hold.leave_to(&mut tx, message(order)?).await?;
        tx.commit().await?;
        Ok(id)
    }
}

#[derive(Clone)]
pub struct OnSqlite(SqlitePool);

impl Orders for OnSqlite {
    type Outbox = sqlite::AsyncOutbox;

    async fn open(url: &str) -> Result<Self, Failure> {
        let options = SqliteConnectOptions::new()
            .filename(url.trim_start_matches("sqlite://"))
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePool::connect_with(options).await?;
        let table = "CREATE TABLE IF NOT EXISTS orders (account TEXT NOT NULL, key TEXT NOT NULL, symbol TEXT NOT NULL, quantity INTEGER NOT NULL)";
        sqlx::query(table).execute(&pool).await?;
        Ok(Self(pool))
    }

    fn outbox(&self) -> sqlite::AsyncOutbox {
        sqlite::AsyncOutbox::default()
    }

    async fn accept(&self, hold: &Hold<sqlite::AsyncOutbox>, order: &OrderRequest) -> Result<MessageId, Failure> {
        let mut tx = self.0.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query("INSERT INTO orders VALUES (?, ?, ?, ?)")
            .bind(&hold.key().tenant)
            .bind(&hold.key().key)
            .bind(&order.symbol)
            .bind(i64::from(order.quantity))
            .execute(&mut *tx)
            .await?;
        let id = hold.leave_to(&mut tx, message(order)?).await?;
        tx.commit().await?;
        Ok(id)
    }
}
