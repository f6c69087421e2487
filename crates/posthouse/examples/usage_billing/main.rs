//! A chat service that bills what its turns use, its outbox, and replicas of its dispatcher: see `examples/usage_billing`.
//!
//! ```text
//! usage_billing                    the story, on a SQLite file that is removed at the end
//! usage_billing URL                the story, in that database, sqlite:// or postgres://
//! usage_billing URL replica NAME [busy | death]    a replica, until its standard input ends
//! ```

// It is a program for people to look at.
#![allow(clippy::print_stdout)]

mod mini_chat;
mod story;

use mini_chat::{
    Chat, Failure,
    dispatcher::{Fault, QuotaPolicy, replica},
    postgres, sqlite,
};
use posthouse::AnyStore;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => {
            let folder = tempfile::tempdir()?;
            let url = format!("sqlite://{}", folder.path().join("chat.db").display());
            story::tell::<sqlite::Service>(&url).await
        }
        [url] if is_postgres(url) => story::tell::<postgres::Service>(url).await,
        [url] => story::tell::<sqlite::Service>(url).await,
        [url, "replica", name, ref fault @ ..] => {
            let fault = match fault {
                ["busy"] => Fault::Busy(3),
                ["death"] => Fault::Death,
                _ => Fault::None,
            };
            if is_postgres(url) {
                run_replica::<postgres::Service>(url, name, fault).await
            } else {
                run_replica::<sqlite::Service>(url, name, fault).await
            }
        }
        _ => Err("usage: usage_billing [URL [replica NAME [busy | death]]]".into()),
    }
}

fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres")
}

async fn run_replica<C: Chat>(url: &str, name: &str, fault: Fault) -> Result<(), Failure> {
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    std::thread::spawn(move || {
        // A service would listen for SIGTERM.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        stop.cancel();
    });
    let label = name.to_owned();
    let say = Arc::new(move |line| println!("{label}  {line}"));
    let plugin = QuotaPolicy::new(C::open(url).await?, fault, say);
    let store = AnyStore::open(url).await?.store();
    replica(store, name, plugin).run(cancel).await?;
    println!("{name}  stopped");
    Ok(())
}
