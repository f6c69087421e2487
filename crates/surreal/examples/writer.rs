//! An application that commits one order with its message after the other, for the tests, which kill it: `writer URL`.
//!
//! It prints the number of each order that is committed.

// What it has committed is what it prints.
#![allow(clippy::print_stdout)]

use posthouse_core::Message;
use posthouse_surreal::{Database, Outbox, SurrealDb};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: writer URL")?;
    let db = Database::connect(&url).await?;
    SurrealDb::migrate(&db).await?;
    // Ends: when it is killed.
    for order in 1_i64.. {
        let tx = db.begin().await?;
        let placed = tx
            .query("CREATE placed CONTENT { number: $order }")
            .bind(("order", order));
        placed.await?.check()?;
        let message = Message::json("order.placed", &order)?.order_key("orders");
        Outbox::default().enqueue(&tx, message).await?;
        tx.commit().await?;
        println!("{order}");
    }
    Ok(())
}
