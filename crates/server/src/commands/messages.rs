//! `posthouse messages`: looking at messages, and deciding about those that wait. The payload is never shown.

use posthouse::{
    Admin, AnyStore, Attempt, AuditEntry, Error, Filter, Message, MessageId, MessageView, State, Timestamp,
    presence::budget, topic::shown,
};
use serde::Serialize;
use serde_json::json;
use std::{
    fmt::Write as _,
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use crate::{
    cli::{Messages, PageArgs, Show, Verb, Which, Who},
    exit::Failure,
    output::{Output, Paint, cut, cut_or_dash, now, relative, size, visible},
    timeline::Timeline,
};

/// `messages ...`
pub async fn run(asked: &Messages, store: &str, out: &Output) -> Result<(), Failure> {
    match asked {
        Messages::List(args) => {
            let filter = filter(&args.which, args.state, &args.page);
            list(filter, args.page.patience, store, out).await
        }
        Messages::Show(args) => show(args, store, out).await,
        Messages::Explain(args) => explain(args.id, store, out).await,
        Messages::Cancel(args) => {
            each(args, store, out, "cancelled", |admin, id, who, note| {
                Box::pin(async move { admin.cancel(id, &who.actor, note).await })
            })
            .await
        }
        Messages::Resolve(args) => {
            let (note, actor) = (args.who.note()?, &args.who.actor);
            let admin = AnyStore::open(store).await?.admin();
            admin.resolve(args.id, actor, note, &args.receipt).await?;
            done(out, args.id, "resolved")
        }
    }
}

/// What the flags ask for. Ages are counted back from now.
pub fn filter(which: &Which, state: Option<State>, page: &PageArgs) -> Filter {
    Filter {
        beyond: page.before,
        limit: page.limit,
        state,
        ..wanted(which)
    }
}

/// The same without a page.
pub fn wanted(which: &Which) -> Filter {
    let ago = |age: Duration| {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        Timestamp::from_micros(now().as_micros().saturating_sub(age))
    };
    Filter {
        namespace: which.namespace.clone(),
        tenant: which.tenant.clone(),
        topic: which.topic.clone(),
        order_key: which.key.clone(),
        code: which.code.clone(),
        since: which.since.map(ago),
        until: which.until.map(ago),
        ..Filter::default()
    }
}

/// One page of messages. A store answers before it has looked at everything; here it goes on until there is a page, or until
/// patience is at an end, and then tells how far it looked.
pub async fn list(mut filter: Filter, patience: Duration, store: &str, out: &Output) -> Result<(), Failure> {
    let admin = AnyStore::open(store).await?.admin();
    let (since, wanted) = (Instant::now(), filter.page_size());
    let mut messages = Vec::new();
    let (next, full) = loop {
        let page = admin.list(&filter).await?;
        messages.extend(page.messages);
        let found = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        if page.next.is_none() || found >= wanted || since.elapsed() >= patience {
            break (page.next, found >= wanted);
        }
        if let Some(next) = page.next {
            out.progress(&format!("{found} found, looked back to number {next}"));
        }
        (filter.beyond, filter.limit) = (page.next, wanted - found);
    };
    out.progress("");
    with_budgets(&*admin, &mut messages).await?;
    if messages.is_empty() {
        out.note(&match filter.state {
            Some(state) => format!("No {state} messages."),
            None => "No messages.".to_owned(),
        });
    } else if out.json {
        messages.iter().try_for_each(|message| out.document(message))?;
    } else {
        out.data(&table(&messages, out))?;
    }
    match next {
        Some(next) if full => out.next_page(next, "limit", &format!("There may be more: add --before {next}")),
        Some(next) => {
            let looked = looked_back(&*admin, next).await?;
            let text = format!(
                "Looked at the messages {looked}, and stopped. There may be more: add --before {next}, or a longer --patience"
            );
            out.next_page(next, "patience", &text);
        }
        None => {}
    }
    Ok(())
}

/// Sets the attempt budget that will be applied: that of the route, where it sets one. A role that may not see relays sees the stored
/// one.
async fn with_budgets(admin: &dyn Admin, messages: &mut [MessageView]) -> Result<(), Error> {
    if !messages
        .iter()
        .any(|m| matches!(m.state, State::Pending | State::Leased))
    {
        return Ok(());
    }
    let relays = match admin.relays().await {
        Err(Error::Denied(_)) => return Ok(()),
        relays => relays?,
    };
    for message in messages {
        message.max_attempts = budget(message, &relays);
    }
    Ok(())
}

/// Since when the message is that was looked at last.
async fn looked_back(admin: &dyn Admin, number: i64) -> Result<String, Error> {
    let last = Filter {
        beyond: Some(number.saturating_add(1)),
        limit: 1,
        ..Filter::default()
    };
    let page = admin.list(&last).await?;
    Ok(match page.messages.first() {
        Some(message) => format!("from {} on", message.created_at),
        None => format!("from number {number} on"),
    })
}

/// `messages explain`
async fn explain(id: MessageId, store: &str, out: &Output) -> Result<(), Failure> {
    let admin = AnyStore::open(store).await?.admin();
    let facts = admin.facts(id).await?.ok_or(Error::NotFound(id))?;
    let causes = posthouse::explain::explain(&facts);
    let state = facts.message.state;
    if out.json {
        return out.document(&json!({ "id": id, "state": state.as_str(), "causes": causes }));
    }
    let mut text = format!("{id}  {state}\n");
    for cause in causes {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}  {}",
            out.paint(Paint::Dim, &format!("{:14}", cause.code())),
            visible(&cause.to_string())
        );
    }
    out.data(&text)
}

/// One verb, done to one message.
type Act = for<'a> fn(
    &'a dyn Admin,
    MessageId,
    &'a Who,
    &'a str,
) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// Does a verb to each of several messages; stops at the first that refuses.
pub async fn each(args: &Verb, store: &str, out: &Output, word: &str, act: Act) -> Result<(), Failure> {
    let note = args.who.note()?;
    let admin = AnyStore::open(store).await?.admin();
    in_turn(&args.ids, out, word, |id| act(&*admin, id, &args.who, note)).await
}

/// The same for any work. Those that were not tried are named by the failure.
pub async fn in_turn<F: Future<Output = Result<(), Error>>>(
    ids: &[MessageId],
    out: &Output,
    word: &str,
    act: impl Fn(MessageId) -> F,
) -> Result<(), Failure> {
    let mut rest = ids;
    while let Some((id, others)) = rest.split_first() {
        out.in_hand(rest);
        act(*id).await?;
        done(out, *id, word)?;
        rest = others;
    }
    out.in_hand(rest);
    Ok(())
}

/// Says that something was done to a message.
pub fn done(out: &Output, id: MessageId, word: &str) -> Result<(), Failure> {
    if out.json {
        out.document(&json!({ "id": id, "done": word }))
    } else {
        out.data(&format!("{id}  {word}"))
    }
}

/// `messages show`
pub async fn show(args: &Show, store: &str, out: &Output) -> Result<(), Failure> {
    let admin = AnyStore::open(store).await?.admin();
    let found = admin.find(args.id).await?;
    let timeline = Timeline::of(&*admin, args.id).await?;
    let Some(mut message) = found else {
        return Err(missing(args.id, timeline.audit.last()));
    };
    with_budgets(&*admin, std::slice::from_mut(&mut message)).await?;
    if out.json {
        let Timeline { attempts, audit } = &timeline;
        return out.document(&Document {
            message: &message,
            attempts,
            audit,
        });
    }
    let mut text = fields(&message, out);
    if !timeline.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{}", timeline.table(out));
    }
    out.data(&text)
}

/// What `messages show --json` writes.
#[derive(Serialize)]
struct Document<'a> {
    message: &'a MessageView,
    attempts: &'a [Attempt],
    audit: &'a [AuditEntry],
}

/// A message that was discarded is gone, but the audit remembers.
fn missing(id: MessageId, last: Option<&AuditEntry>) -> Failure {
    let failure = Failure::from(Error::NotFound(id));
    match last {
        Some(AuditEntry {
            at,
            actor,
            action,
            note,
            ..
        }) => failure.help(format!(
            "the audit remembers: {action} by {actor}, {}: {note}",
            relative(*at, now())
        )),
        None => failure,
    }
}

/// Messages under a heading.
pub fn table(messages: &[MessageView], out: &Output) -> String {
    let now = now();
    let any = |told: fn(&MessageView) -> bool| messages.iter().any(told);
    // A column in which every message says the same nothing is left out.
    let columns: Vec<Column> = [
        Some(Column("ID", |m, _| m.id.to_string())),
        Some(Column("STATE", |m, _| match m.unreadable {
            Some(_) => "unreadable".to_owned(),
            None => m.state.to_string(),
        })),
        Some(Column("TOPIC", |m, _| cut(&shown(&m.topic), 32))),
        any(|m| m.namespace != Message::DEFAULT_NAMESPACE).then_some(Column("NAMESPACE", |m, _| cut(&m.namespace, 16))),
        any(|m| !m.tenant.is_empty()).then_some(Column("TENANT", |m, _| cut_or_dash(&m.tenant, 16))),
        any(|m| m.order_key.is_some()).then_some(Column("KEY", |m, _| {
            cut_or_dash(m.order_key.as_deref().unwrap_or_default(), 20)
        })),
        Some(Column("ATTEMPTS", |m, _| format!("{}/{}", m.attempts, m.max_attempts))),
        Some(Column("CREATED", |m, now| relative(m.created_at, now))),
        Some(Column("DETAIL", |m, now| cut(&standing(m, now), 60))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let heading: Vec<_> = columns.iter().map(|column| column.0).collect();
    let items = messages
        .iter()
        .map(|m| columns.iter().map(|column| (column.1)(m, now)).collect())
        .collect();
    out.table(&heading, items)
}

/// A heading, and what stands under it.
struct Column(&'static str, fn(&MessageView, Timestamp) -> String);

/// Where a message stands, beyond its state.
fn standing(message: &MessageView, now: Timestamp) -> String {
    let at = |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), |time| relative(time, now));
    if let Some(why) = &message.unreadable {
        return why.clone();
    }
    match message.state {
        State::Pending => match (&message.last_code, message.due_at.is_some_and(|due| due > now)) {
            (None, false) => "due".to_owned(),
            (None, true) => format!("due {}", at(message.due_at)),
            (Some(code), false) => format!("due, after {code}"),
            (Some(code), true) => format!("due {}, after {code}", at(message.due_at)),
        },
        State::Leased => {
            let word = if message.lease_until.is_some_and(|until| until > now) {
                "ends"
            } else {
                "ran out"
            };
            format!(
                "{}, lease {word} {}",
                message.worker.as_deref().unwrap_or("-"),
                at(message.lease_until)
            )
        }
        State::Done => format!("ended {}", at(message.finished_at)),
        State::Dead => {
            let reason = message.reason.map_or("-", |reason| reason.as_str());
            let code = message
                .last_code
                .as_deref()
                .map(|code| format!(" after {code}"))
                .unwrap_or_default();
            format!("{reason}{code}")
        }
        State::Quarantined => message.note.clone().unwrap_or_default(),
    }
}

/// One field to a line; what is not set is left out.
fn fields(m: &MessageView, out: &Output) -> String {
    let now = now();
    let time = |at: Timestamp| format!("{at} ({})", relative(at, now));
    let reason = m.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let last = [&m.last_code, &m.last_error]
        .into_iter()
        .flatten()
        .cloned()
        .collect::<Vec<_>>()
        .join(": ");
    let lines = [
        ("message", Some(m.id.to_string())),
        ("unreadable", m.unreadable.clone()),
        ("state", Some(format!("{}{reason}", m.state))),
        ("topic", Some(shown(&m.topic).into_owned())),
        ("namespace", Some(m.namespace.clone())),
        ("tenant", Some(m.tenant.clone()).filter(|tenant| !tenant.is_empty())),
        ("order key", m.order_key.clone()),
        ("dedupe key", m.dedupe_key.clone()),
        ("payload", Some(format!("{}, {}", size(m.bytes), m.content_type))),
        ("digest", m.digest.map(|digest| digest.to_string())),
        ("attempts", Some(format!("{} of {}", m.attempts, m.max_attempts))),
        (
            "replays",
            Some(m.generation.saturating_sub(1))
                .filter(|n| *n > 0)
                .map(|n| n.to_string()),
        ),
        ("epoch", Some(m.epoch.to_string())),
        ("destination", m.destination.clone()),
        ("parent", m.parent.map(|parent| parent.to_string())),
        ("worker", m.worker.clone()),
        ("lease until", m.lease_until.map(time)),
        ("created", Some(time(m.created_at))),
        ("due", m.due_at.filter(|_| m.state == State::Pending).map(time)),
        ("deliver by", m.deliver_by.map(time)),
        ("ended", m.finished_at.map(time)),
        ("last failure", Some(last).filter(|last| !last.is_empty())),
        ("note", m.note.clone()),
        ("number", Some(m.seq.to_string())),
    ];
    out.fields(lines)
}
