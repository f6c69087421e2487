//! `posthouse doctor`: looks at everything that commonly goes wrong, and says what to do about it. It changes nothing.

mod findings;
#[cfg(test)]
mod tests;

use posthouse::{
    Admin, AnyStore, Error, Filter, Fit, MessageId, MessageView, State, Wake,
    condition::Condition,
    presence::{self, Unrouted},
    saga::{SagaFilter, SagaState},
};
use serde_json::json;
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    time::{Duration, Instant},
};
use url::Url;

use self::findings::{Facts, Finding, Level, NoRoute, SAMPLE, findings};
use crate::{
    cli::Doctor,
    config::{self, Loaded, Sources},
    exit::Failure,
    output::{Output, Paint, WIDTH, broken, now, visible},
};

/// Keys that are asked about, to find one that is blocked.
const KEYS_ASKED: usize = 50;
/// Topics without a route of which a waiting message is looked for.
const TOPICS_ASKED: usize = 20;
/// How long a second way to the store may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Checks that say nothing true where this role may not look at messages and relays.
const UNSEEN: [&str; 4] = ["relays", "routes", "destinations", "sagas"];

/// `doctor`
pub async fn run(args: &Doctor, sources: &Sources, out: &Output) -> Result<(), Failure> {
    let mut all = configuration(sources);
    let loaded = config::load(sources).ok();
    // A mistake elsewhere in the configuration keeps nobody from looking at the stores.
    match config::load_stores(sources) {
        Ok(stores) => {
            for store in stores {
                let found = look_at(&store, args, loaded.as_ref()).await;
                all.extend(found.into_iter().map(|finding| Finding {
                    store: store.name.clone(),
                    ..finding
                }));
            }
        }
        // Told already: this is a part of what was wrong.
        Err(_) => all.push(Finding::fail(
            "store",
            "not looked at, because the configuration does not say where it is",
            None,
        )),
    }
    tell(&all, out)?;
    match all.iter().filter(|finding| finding.level == Level::Fail).count() {
        0 => Ok(()),
        1 => Err(Failure::new("1 check failed")),
        n => Err(Failure::new(format!("{n} checks failed"))),
    }
}

fn configuration(sources: &Sources) -> Vec<Finding> {
    let file = sources.file.as_ref().map_or_else(
        || format!("no {}; environment and defaults", config::DEFAULT_FILE),
        |file| file.display().to_string(),
    );
    let loaded = match config::load(sources) {
        Ok(loaded) => loaded,
        Err(problems) => {
            let failure = Failure::from(problems);
            let todo = Some("see what is wrong: posthouse config check".to_owned());
            return vec![Finding::fail("configuration", failure.message, todo)];
        }
    };
    let mut found = vec![match loaded.warnings.len() {
        0 => Finding::ok("configuration", format!("{file}: sound")),
        n => Finding::warn(
            "configuration",
            format!("{file}: sound, with {n} warning{}", if n == 1 { "" } else { "s" }),
            "see them: posthouse config check",
        ),
    }];
    if let Some(address) = loaded
        .config
        .admin
        .bind
        .filter(|a| !a.ip().to_canonical().is_loopback())
    {
        found.push(Finding::warn(
            "admin",
            format!("admin.bind = {address} answers everybody who reaches it, and trusts a proxy to keep others out"),
            "see to it that it is reached through the proxy alone, or bind it to 127.0.0.1",
        ));
    }
    found
}

async fn look_at(store: &config::Store, args: &Doctor, loaded: Option<&Loaded>) -> Vec<Finding> {
    let (url, shown) = (store.url.expose(), AnyStore::shown_url(store.url.expose()));
    let any = match AnyStore::open(url).await {
        Ok(any) => any,
        Err(error) => {
            let check = if matches!(error, Error::Schema(_)) {
                "schema"
            } else {
                "store"
            };
            let failure = Failure::from(error);
            return vec![Finding::fail(check, failure.message, failure.help)];
        }
    };
    let mut found = vec![Finding::ok("store", format!("{shown} answers")), schema(url).await];
    found.extend(direct(store).await);
    found.extend(producers(&any, loaded).await);
    match facts(&any, store).await {
        Ok((facts, None)) => found.extend(findings(&facts, args.old)),
        Ok((facts, Some(denied))) => {
            let seen = findings(&facts, args.old).into_iter();
            found.extend(seen.filter(|finding| !UNSEEN.contains(&finding.check)));
            found.push(Finding::warn(
                "rights",
                format!("{} were not looked at: {denied}", UNSEEN.join(", ")),
                "ask as a member of the role posthouse_operator",
            ));
        }
        Err(error) => {
            let failure = Failure::from(error);
            found.push(Finding::fail("store", failure.message, failure.help));
        }
    }
    found
}

/// Whether relays can listen, where they have a URL of its own for that.
async fn direct(store: &config::Store) -> Option<Finding> {
    let direct = store.direct_url.as_ref()?.expose();
    let any = AnyStore::open_past_pooler(store.url.expose(), Some(direct))
        .await
        .ok()?;
    let (store, since) = (any.store(), Instant::now());
    let problem = loop {
        match store.wake(Duration::from_millis(100)).await {
            // Who begins to listen is woken once.
            Ok(Wake::Rung) => return None,
            Ok(Wake::Elapsed) if since.elapsed() < PATIENCE => {}
            Ok(Wake::Elapsed) => break format!("nobody answers within {} seconds", PATIENCE.as_secs()),
            Err(error) => break error.to_string(),
        }
    };
    Some(Finding::warn(
        "wake-ups",
        format!("store.direct_url does not lead to the store: {problem}"),
        "relays are not woken, and look for messages at each poll alone: mend store.direct_url, or take it out where there is no pooler",
    ))
}

/// Names settings of the configuration that bind producers and are not in the store: `posthouse migrate` was not run since.
async fn producers(any: &AnyStore, loaded: Option<&Loaded>) -> Option<Finding> {
    // A role that may not read the settings cannot compare them.
    let stored = any.settings().await.ok()?;
    let wanted = loaded?.settings(stored.clone())?;
    let differs = [
        (
            "payload_max_bytes",
            wanted.limits.payload_bytes != stored.limits.payload_bytes,
        ),
        (
            "require_tenant",
            wanted.limits.require_tenant != stored.limits.require_tenant,
        ),
        ("max_attempts", wanted.max_attempts != stored.max_attempts),
        ("dedupe_days", wanted.dedupe_lifetime != stored.dedupe_lifetime),
    ];
    let names: Vec<_> = differs
        .iter()
        .filter(|(_, differs)| *differs)
        .map(|(name, _)| *name)
        .collect();
    (!names.is_empty()).then(|| {
        Finding::warn(
            "producers",
            format!(
                "the store holds producers to other values than the configuration says: {}",
                names.join(", ")
            ),
            "write them into the store: posthouse migrate",
        )
    })
}

/// It was opened, so it fits; this tells how.
async fn schema(url: &str) -> Finding {
    match AnyStore::plan_migration(url).await {
        Ok(plan) if plan.fit == Fit::Newer => {
            let version = plan.found.map_or(0, |found| found.version);
            let text = format!("version {version}, newer than this program knows, and admits it");
            Finding::warn("schema", text, "upgrade this program")
        }
        Ok(plan) => Finding::ok("schema", format!("version {}, up to date", plan.target.version)),
        // Not everybody may look so closely.
        Err(_) => Finding::ok("schema", "admits this program"),
    }
}

/// What is known, and why some of it is not, where this role may not look at messages and relays.
async fn facts(any: &AnyStore, store: &config::Store) -> Result<(Facts, Option<String>), Error> {
    let mut denied = None;
    let admin = any.admin();
    let (before, since) = (now(), Instant::now());
    let condition = any.condition().await?;
    let unsure = since.elapsed().as_secs_f64();
    let page = |state: State, oldest_first: bool| Filter {
        state: Some(state),
        oldest_first,
        limit: SAMPLE,
        ..Filter::default()
    };
    let counts = admin.counts().await?;
    let waiting = admin.list(&page(State::Pending, true)).await;
    let waiting = waiting.map(|page| (page.messages, page.next.is_none()));
    let (waiting, waiting_whole) = allowed(waiting, &mut denied)?;
    let relays = allowed(admin.relays().await, &mut denied)?;
    let met = presence::unrouted(&relays);
    let blocked = match counts.blocked_keys.value {
        0 => None,
        _ => blocked(&*admin, &waiting).await?,
    };
    let facts = Facts {
        ahead: ahead(&condition, before, unsure),
        condition,
        counts,
        unrouted_more: met.more,
        unrouted: still_waiting(&*admin, met).await?,
        relays,
        destinations: allowed(admin.destinations().await, &mut denied)?,
        dead: allowed(
            admin.list(&page(State::Dead, false)).await.map(|p| p.messages),
            &mut denied,
        )?,
        held_sagas: allowed(admin.sagas(&held()).await.map(|page| page.sagas), &mut denied)?.len(),
        waiting,
        waiting_whole,
        blocked,
        asked_port: asked_port(store.url.expose()),
        has_direct: store.direct_url.is_some(),
    };
    Ok((facts, denied))
}

/// A relay remembers a topic without a route also when its messages have ended since: keeps those of which one waits, or may wait.
async fn still_waiting(admin: &dyn Admin, met: Unrouted) -> Result<Vec<NoRoute>, Error> {
    let mut kept = Vec::new();
    for (n, one) in met.topics.into_iter().enumerate() {
        // A topic that holds an address is shortened, so no message has it.
        let asked = n < TOPICS_ASKED && !one.topic.contains("://");
        let mut found = None;
        if asked {
            let filter = Filter {
                namespace: Some(one.namespace),
                topic: Some(one.topic.clone()),
                state: Some(State::Pending),
                limit: 1,
                ..Filter::default()
            };
            let page = admin.list(&filter).await?;
            found = page.messages.first().map(|message| message.id);
            if found.is_none() && page.next.is_none() {
                continue;
            }
        }
        kept.push(NoRoute {
            topic: one.topic,
            example: found,
        });
    }
    Ok(kept)
}

/// The default where this role has not the right, and the first refusal.
fn allowed<T: Default>(found: Result<T, Error>, denied: &mut Option<String>) -> Result<T, Error> {
    match found {
        Err(Error::Denied(why)) => {
            denied.get_or_insert(why);
            Ok(T::default())
        }
        other => other,
    }
}

/// The store's clock was read some time after `before`, within as many seconds as it is unsure.
fn ahead(condition: &Condition, before: posthouse::Timestamp, unsure: f64) -> Option<(f64, f64)> {
    let micros = condition.now?.as_micros() - before.as_micros();
    Some((micros as f64 / 1e6 - unsure / 2.0, unsure / 2.0))
}

/// The port of a server that the URL names; nothing for a file or a local socket.
fn asked_port(url: &str) -> Option<u16> {
    let url = Url::parse(url)
        .ok()
        .filter(|url| url.scheme().starts_with("postgres"))?;
    // Hosts that the parameters name are as good as unknown.
    let elsewhere = url
        .query_pairs()
        .any(|(name, _)| matches!(&*name, "host" | "port" | "hostaddr"));
    url.host_str()
        .filter(|host| !host.is_empty() && !host.starts_with("%2") && !elsewhere)?;
    Some(url.port().unwrap_or(5432))
}

/// One that waits behind something dead or quarantined.
async fn blocked(admin: &dyn Admin, waiting: &[MessageView]) -> Result<Option<(MessageId, MessageId)>, Error> {
    let mut asked = BTreeSet::new();
    for message in waiting {
        let Some(key) = &message.order_key else { continue };
        if asked.len() >= KEYS_ASKED || !asked.insert((&message.namespace, &message.tenant, key)) {
            continue;
        }
        let ahead = admin.facts(message.id).await?.and_then(|facts| facts.ahead);
        if let Some(ahead) = ahead.filter(|m| matches!(m.state, State::Dead | State::Quarantined)) {
            return Ok(Some((message.id, ahead.id)));
        }
    }
    Ok(None)
}

fn tell(all: &[Finding], out: &Output) -> Result<(), Failure> {
    if out.json {
        let sound = all.iter().all(|finding| finding.level != Level::Fail);
        return out.document(&json!({ "sound": sound, "findings": all }));
    }
    let named = all.iter().any(|finding| finding.store.is_some());
    let mut text = String::new();
    for finding in all {
        let (word, paint) = match finding.level {
            Level::Ok => ("ok", Paint::Green),
            Level::Warn => ("warn", Paint::Cyan),
            Level::Fail => ("fail", Paint::Red),
        };
        let name = finding
            .store
            .as_deref()
            .filter(|_| named)
            .map(|name| format!("{name}: "));
        let found = format!("{}{}", name.unwrap_or_default(), visible(&finding.found));
        let lines = broken(&found, usize::from(WIDTH) - INDENT);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}{:15}{}",
            out.paint(paint, &format!("{word:6}")),
            finding.check,
            lines.join(&format!("\n{:INDENT$}", ""))
        );
        if let Some(todo) = &finding.todo {
            let lines = broken(&visible(todo), usize::from(WIDTH) - INDENT - 3);
            let mark = out.paint(Paint::Cyan, "->");
            let _ = writeln!(
                text,
                "{:INDENT$}{mark} {}",
                "",
                lines.join(&format!("\n{:1$}", "", INDENT + 3))
            );
        }
    }
    out.data(&text)
}

/// Where the text of a line begins.
const INDENT: usize = 21;

/// Sagas that wait for a person.
fn held() -> SagaFilter {
    SagaFilter {
        state: Some(SagaState::Held),
        limit: SAMPLE,
        ..SagaFilter::default()
    }
}
