//! An application that has Diesel 2 on SQLite: it enqueues in plain SQL, in its own transaction, and links the same SQLite as the
//! store in the same process.
//!
//! `cargo run -- orders.db`

use diesel::{Connection, RunQueryDsl, SqliteConnection, connection::SimpleConnection, sql_query, sql_types};
use posthouse::sqlite::Sqlite;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(diesel::QueryableByName)]
struct Messages {
    #[diesel(sql_type = sql_types::BigInt)]
    count: i64,
}

fn place(db: &mut SqliteConnection, order: i32) -> diesel::QueryResult<usize> {
    sql_query("INSERT INTO orders VALUES (?)")
        .bind::<sql_types::Integer, _>(order)
        .execute(db)?;
    sql_query("INSERT INTO posthouse_enqueue (topic, payload, order_key) VALUES ('order.placed', ?, ?)")
        .bind::<sql_types::Text, _>(order.to_string())
        .bind::<sql_types::Text, _>(format!("order-{order}"))
        .execute(db)
}

fn main() -> Result<()> {
    let file = std::env::args().nth(1).ok_or("name a file for SQLite")?;
    Sqlite::migrate(&file)?;
    let mut db = SqliteConnection::establish(&file)?;
    db.batch_execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")?;
    db.immediate_transaction(|db| place(db, 42))?;
    let refused = db.immediate_transaction(|db| {
        place(db, 43)?;
        Err::<(), _>(diesel::result::Error::RollbackTransaction)
    });
    assert!(refused.is_err());
    let found: Messages = sql_query("SELECT count(*) AS count FROM posthouse_messages").get_result(&mut db)?;
    println!("SQLite: {} message", found.count);
    Ok(())
}
