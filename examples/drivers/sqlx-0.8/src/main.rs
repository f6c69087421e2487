//! An application whose driver Posthouse has no adapter for: it writes its own, in some thirty lines. Here that is sqlx 0.8.
//!
//! `DATABASE_URL=postgres://... cargo run -- orders.db`

use posthouse::{
    Error, Message,
    postgres::{Arg, Call, Outbox, Postgres, Run, from_sqlstate},
    sqlite::Sqlite,
};
use sqlx::postgres::PgDatabaseError;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A transaction that can run the one call that an adapter must be able to run.
struct Tx<'a>(sqlx::Transaction<'a, sqlx::Postgres>);

impl Run for Tx<'_> {
    async fn run(&mut self, call: &Call) -> std::result::Result<Option<Vec<Option<String>>>, Error> {
        let mut query = sqlx::query_scalar(&call.sql).persistent(call.keep);
        for arg in &call.args {
            query = match arg {
                Arg::Uuids(v) => query.bind(v),
                Arg::Texts(v) => query.bind(v),
                Arg::Blobs(v) => query.bind(v),
                Arg::Longs(v) => query.bind(v),
                Arg::Flags(v) => query.bind(v),
                Arg::Flag(v) => query.bind(v),
            };
        }
        query.fetch_one(&mut *self.0).await.map_err(meaning)
    }
}

fn meaning(e: sqlx::Error) -> Error {
    let source = e.to_string().into();
    let Some(db) = e.as_database_error() else {
        return Error::Unavailable(source);
    };
    let pg = db.try_downcast_ref::<PgDatabaseError>();
    let (detail, hint) = (pg.and_then(|pg| pg.detail()), pg.and_then(|pg| pg.hint()));
    from_sqlstate(&db.code().unwrap_or_default(), db.message(), detail, hint, source)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL")?;
    Postgres::open(&url, Default::default())?.migrate().await?;
    let pool = sqlx::PgPool::connect(&url).await?;
    let outbox = Outbox::default();
    let message = Message::json("invoice.sent", &42)?.dedupe_key("invoice-42");
    let mut tx = Tx(pool.begin().await?);
    outbox.enqueue(&mut tx, message.clone()).await?;
    tx.0.commit().await?;
    let mut tx = Tx(pool.begin().await?);
    outbox.enqueue(&mut tx, Message::json("invoice.sent", &43)?).await?;
    tx.0.rollback().await?;
    let mut tx = Tx(pool.begin().await?);
    let conflict = outbox
        .enqueue(
            &mut tx,
            Message {
                payload: b"44".to_vec(),
                ..message
            },
        )
        .await;
    assert!(matches!(conflict, Err(Error::DedupeConflict { .. })), "{conflict:?}");
    drop(tx);
    let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM posthouse.messages WHERE topic = 'invoice.sent'");
    println!("PostgreSQL: {} message", count.fetch_one(&pool).await?);

    // On SQLite the contract is one INSERT, whatever the driver.
    let file = std::env::args().nth(1).ok_or("name a file for SQLite")?;
    Sqlite::migrate(&file)?;
    let pool = sqlx::SqlitePool::connect(&file).await?;
    let enqueue = "INSERT INTO posthouse_enqueue (topic, payload) VALUES ('invoice.sent', ?)";
    let mut tx = pool.begin().await?;
    sqlx::query(enqueue).bind("42").execute(&mut *tx).await?;
    tx.commit().await?;
    let mut tx = pool.begin().await?;
    sqlx::query(enqueue).bind("43").execute(&mut *tx).await?;
    tx.rollback().await?;
    let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM posthouse_messages");
    println!("SQLite: {} message", count.fetch_one(&pool).await?);
    Ok(())
}
