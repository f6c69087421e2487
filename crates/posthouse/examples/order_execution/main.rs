//! Orders under an `Idempotency-Key`, executed by a broker: see `examples/order_execution`.
//!
//! ```text
//! order_execution broker LISTEN                  a broker to try it with
//! order_execution serve LISTEN DATABASE BROKER   POST /do/order; with OUTBOX_ENABLED=true a worker too
//! order_execution worker NAME DATABASE BROKER    a worker alone
//! ```

// It is a program for people to look at.
#![allow(clippy::print_stdout)]

mod do_layer;

use axum::Router;
use do_layer::{
    Failure, broker,
    database::{OnPostgres, OnSqlite},
    service,
    settings::Settings,
    worker::worker,
};
use posthouse::AnyStore;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["broker", listen] => listen_on(listen, "broker", broker::router()).await,
        ["serve", listen, url, broker] => {
            AnyStore::migrate(url).await?;
            let settings = settings()?;
            let app = if url.starts_with("postgres") {
                service::router::<OnPostgres>(url).await?
            } else {
                service::router::<OnSqlite>(url).await?
            };
            if settings.enabled {
                let name = format!("worker-{}", std::process::id());
                let relay = worker(AnyStore::open(url).await?.store(), &name, broker, &settings)?;
                tokio::spawn(relay.run(CancellationToken::new()));
                println!("worker {name} is at work");
            } else {
                println!("OUTBOX_ENABLED is not true: orders are taken, and wait for a worker");
            }
            listen_on(listen, "orders", app).await
        }
        ["worker", name, url, broker] => {
            let relay = worker(AnyStore::open(url).await?.store(), name, broker, &settings()?)?;
            println!("worker {name} is at work");
            Ok(relay.run(CancellationToken::new()).await?)
        }
        _ => Err(
            "usage: order_execution broker LISTEN | serve LISTEN DATABASE BROKER | worker NAME DATABASE BROKER".into(),
        ),
    }
}

fn settings() -> Result<Settings, Failure> {
    Ok(Settings::read(|name| std::env::var(name).ok())?)
}

async fn listen_on(address: &str, what: &str, app: Router) -> Result<(), Failure> {
    let listener = TcpListener::bind(address).await?;
    println!("{what} at http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
