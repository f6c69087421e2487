//! `posthouse ledger`: looking at what was begun under a key, and how it ended. Neither a holder's token nor an answer's body is shown.

use posthouse::{
    AnyStore, Timestamp,
    ledger::{EntryFilter, EntryKey, EntryView, Status, Waits},
};
use serde_json::json;

use crate::{
    cli::{Ledger, LedgerList, LedgerShow},
    exit::Failure,
    output::{Output, cut, cut_or_dash, now, relative, size},
};

/// `ledger ...`
pub async fn run(asked: &Ledger, store: &str, out: &Output) -> Result<(), Failure> {
    match asked {
        Ledger::List(args) => list(args, store, out).await,
        Ledger::Show(args) => show(args, store, out).await,
    }
}

async fn list(args: &LedgerList, store: &str, out: &Output) -> Result<(), Failure> {
    let filter = EntryFilter {
        tenant: args.tenant.clone(),
        scope: args.scope.clone(),
        status: args.status,
        after: args.after.clone(),
        limit: args.limit,
    };
    let page = AnyStore::open(store).await?.admin().entries(&filter).await?;
    if page.entries.is_empty() {
        out.note("No entries.");
    } else if out.json {
        page.entries.iter().try_for_each(|entry| out.document(entry))?;
    } else {
        let now = now();
        let items = page.entries.iter().map(|entry| row(entry, now)).collect();
        let heading = ["TENANT", "SCOPE", "KEY", "STATUS", "CHANGED", "DETAIL"];
        out.data(&out.table(&heading, items))?;
    }
    if let Some(EntryKey { tenant, scope, key }) = page.next {
        let after = json!([tenant, scope, key]);
        let text = format!("There may be more: add --after '{after}'");
        out.next(&json!({ "after": after }), &text);
    }
    Ok(())
}

async fn show(args: &LedgerShow, store: &str, out: &Output) -> Result<(), Failure> {
    let key = EntryKey::new(&args.scope, &args.key).tenant(&args.tenant);
    key.check()?;
    let admin = AnyStore::open(store).await?.admin();
    let Some(entry) = admin.entry(&key).await? else {
        let problem = match args.tenant.as_str() {
            "" => "there is no entry without a tenant under this scope and key",
            _ => "this tenant has no entry under this scope and key",
        };
        return Err(Failure::not_found(problem).help("which there are: posthouse ledger list; of a tenant: --tenant"));
    };
    if out.json {
        return out.document(&entry);
    }
    out.data(&fields(&entry, out))
}

fn row(entry: &EntryView, now: Timestamp) -> Vec<String> {
    vec![
        cut_or_dash(&entry.tenant, 16),
        cut(&entry.scope, 32),
        cut(&entry.key, 40),
        word(entry.status),
        relative(entry.updated_at, now),
        cut(&standing(entry, now), 60),
    ]
}

fn word(status: Status) -> String {
    status.as_str().replace('_', " ")
}

/// Where an entry stands, beyond its status.
fn standing(entry: &EntryView, now: Timestamp) -> String {
    let code = entry.http_status.map(|status| status.to_string());
    match entry.waits(now) {
        Some(Waits::Holder(until)) => format!("held, ends {}", relative(until, now)),
        Some(Waits::Heir) => "its holder was not heard of again".to_owned(),
        Some(Waits::Message(id)) => format!("left to message {id}"),
        Some(Waits::Anybody) => match &entry.error {
            Some(error) => format!("let go of: {error}"),
            None => "let go of".to_owned(),
        },
        None => [code, entry.error.clone()]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(": "),
    }
}

fn fields(entry: &EntryView, out: &Output) -> String {
    let now = now();
    let time = |at: Timestamp| format!("{at} ({})", relative(at, now));
    let in_flight = entry.status == Status::InFlight;
    let result = match (entry.result_bytes, entry.result_digest) {
        (Some(bytes), _) => Some(size(bytes)),
        (None, Some(_)) => Some("not kept".to_owned()),
        (None, None) => None,
    };
    out.fields([
        ("scope", Some(entry.scope.clone())),
        ("key", Some(entry.key.clone())),
        ("tenant", Some(entry.tenant.clone()).filter(|tenant| !tenant.is_empty())),
        ("status", Some(word(entry.status))),
        ("standing", Some(standing(entry, now)).filter(|_| in_flight)),
        ("http status", entry.http_status.map(|status| status.to_string())),
        ("result", result),
        ("digest", entry.result_digest.map(|digest| digest.to_string())),
        ("error", entry.error.clone()),
        ("checkpoint", entry.checkpoint.clone()),
        ("message", entry.message.map(|id| id.to_string())),
        ("fingerprint", Some(entry.fingerprint.to_string())),
        ("created", Some(time(entry.created_at))),
        ("changed", Some(time(entry.updated_at))),
        ("kept until", entry.expires_at.map(time)),
    ])
}
