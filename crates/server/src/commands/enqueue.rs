//! `posthouse enqueue`: one message, in a transaction of its own.

use posthouse::{AnyStore, Enqueued, Invalid, Limits, Message, OnDuplicate, Order, topic::shown};
use serde_json::json;
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use crate::{
    cli::Enqueue,
    exit::Failure,
    output::{Output, size, visible},
};

/// Runs the command.
pub async fn run(args: &Enqueue, store: &str, out: &Output) -> Result<(), Failure> {
    let message = message(args, payload(args).await?)?;
    let bytes = message.payload.len() as u64;
    let store = AnyStore::open(store).await?;
    let answers = store.enqueue(vec![message]).await?;
    let answer = *answers
        .first()
        .ok_or_else(|| Failure::new("the store gave no answer"))?;
    let (id, word) = match answer {
        Enqueued::New(id) => (id, "new"),
        Enqueued::Duplicate(id) => (id, "duplicate"),
    };
    let topic = visible(&shown(&args.topic));
    out.note(&match answer {
        Enqueued::New(_) => format!("Enqueued {topic}, {}.", size(bytes)),
        Enqueued::Duplicate(_) => format!("{topic} was there already; nothing was written."),
    });
    if out.json {
        out.document(&json!({ "id": id, "result": word }))
    } else {
        out.data(&id.to_string())
    }
}

/// The message as the flags say, checked before any store is asked.
fn message(args: &Enqueue, payload: Vec<u8>) -> Result<Message, Failure> {
    let mut message = Message::bytes(&args.topic, &args.content_type, payload)
        .tenant(&args.tenant)
        .namespace(&args.namespace)
        .delay(args.delay.unwrap_or_default())
        .on_dead(args.on_dead);
    message.id = args.id;
    message.order_key = args.key.clone();
    message.dedupe_key = args.dedupe.clone();
    message.deliver_in = args.deliver_in;
    message.max_attempts = args.max_attempts;
    if args.keep {
        message.on_duplicate = OnDuplicate::Keep;
    }
    if args.relaxed {
        message.order = Order::Relaxed;
    }
    for (name, value) in &args.headers {
        if message.headers.insert(name.clone(), value.clone()).is_some() {
            return Err(Invalid::new("headers", format!("{:?} is given twice", visible(name))).into());
        }
    }
    // The store says itself how much is too much for it.
    message.check(&Limits {
        payload_bytes: Limits::HARD_PAYLOAD_BYTES,
        ..Limits::default()
    })?;
    check_json(&message)?;
    Ok(message)
}

/// A payload that says it is JSON and is not would be found out by its receiver only, again and again.
fn check_json(message: &Message) -> Result<(), Failure> {
    if message.content_type != "application/json" {
        return Ok(());
    }
    let parsed = serde_json::from_slice::<serde::de::IgnoredAny>(&message.payload);
    parsed.map(drop).map_err(|e| {
        let failure = Failure::from(Invalid::new("payload", format!("is not JSON: {e}")));
        failure.help("correct it, or say what it is with --content-type, for instance text/plain")
    })
}

async fn payload(args: &Enqueue) -> Result<Vec<u8>, Failure> {
    match (&args.data, &args.file) {
        (Some(text), _) => Ok(text.clone().into_bytes()),
        (None, Some(path)) => read(path.clone()).await,
        // Apart, because a terminal may take for ever, and Ctrl-C must still be heard.
        (None, None) => tokio::task::spawn_blocking(|| bounded(io::stdin().lock(), Path::new("standard input")))
            .await
            .map_err(|e| Failure::new(e.to_string()))?,
    }
}

async fn read(path: std::path::PathBuf) -> Result<Vec<u8>, Failure> {
    let work = move || {
        File::open(&path)
            .map_err(|e| unreadable(&path, &e))
            .and_then(|file| bounded(file, &path))
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Failure::new(e.to_string()))?
}

/// Reads no more than it takes to see that it is too much.
fn bounded(source: impl Read, path: &Path) -> Result<Vec<u8>, Failure> {
    let mut payload = Vec::new();
    let most = Limits::HARD_PAYLOAD_BYTES as u64 + 1;
    source
        .take(most)
        .read_to_end(&mut payload)
        .map_err(|e| unreadable(path, &e))?;
    Ok(payload)
}

fn unreadable(path: &Path, e: &io::Error) -> Failure {
    Invalid::new("payload", format!("{} cannot be read: {e}", path.display())).into()
}
