//! The program at the top of the README.

// It is a program for people to look at.
#![allow(clippy::print_stdout)]

use posthouse::{AnyStore, Message, Relay, relay::CancellationToken, relay::local, sqlite::AsyncOutbox};

async fn publish_usage(tokens: u64) -> Result<(), std::io::Error> {
    println!("{tokens} tokens are billed");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    AnyStore::migrate("sqlite://chat.db").await?;
    let pool = sqlx::SqlitePool::connect("sqlite://chat.db").await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS turn (tokens integer)")
        .execute(&pool)
        .await?;

    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?; // your transaction
    sqlx::query("INSERT INTO turn VALUES (1204)").execute(&mut *tx).await?; // your change
    AsyncOutbox::default()
        .enqueue(&mut tx, Message::json("usage.snapshot", &1204)?)
        .await?;
    tx.commit().await?; // both, or neither

    let store = AnyStore::open("sqlite://chat.db").await?.store();
    Relay::builder(store)
        .route("usage.*", local(publish_usage))
        .run(CancellationToken::new())
        .await?;
    Ok(())
}
