//! An application that has sqlx 0.9: its transactions are taken as they are, on PostgreSQL and on SQLite.
//!
//! `DATABASE_URL=postgres://... cargo run -- orders.db`

use posthouse::{
    Message,
    postgres::{self, Postgres},
    sqlite::{self, Sqlite},
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL")?;
    Postgres::open(&url, Default::default())?.migrate().await?;
    let pool = sqlx::PgPool::connect(&url).await?;
    let mut tx = pool.begin().await?;
    postgres::Outbox::default()
        .enqueue(&mut tx, Message::json("order.placed", &42)?)
        .await?;
    tx.commit().await?;
    let mut tx = pool.begin().await?;
    postgres::Outbox::default()
        .enqueue(&mut tx, Message::json("order.placed", &43)?)
        .await?;
    tx.rollback().await?;
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM posthouse.messages WHERE topic = 'order.placed'")
        .fetch_one(&pool)
        .await?;
    println!("PostgreSQL: {count} message");

    let file = std::env::args().nth(1).ok_or("name a file for SQLite")?;
    Sqlite::migrate(&file)?;
    let pool = sqlx::SqlitePool::connect(&file).await?;
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlite::AsyncOutbox::default()
        .enqueue(&mut tx, Message::json("order.placed", &42)?)
        .await?;
    tx.commit().await?;
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlite::AsyncOutbox::default()
        .enqueue(&mut tx, Message::json("order.placed", &43)?)
        .await?;
    tx.rollback().await?;
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM posthouse_messages")
        .fetch_one(&pool)
        .await?;
    println!("SQLite: {count} message");
    Ok(())
}
