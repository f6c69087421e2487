//! `posthouse dead`: looking at dead letters, and deciding about them.

use posthouse::{
    AnyStore, Filter, State,
    bulk::{BulkReplay, LeftOut, Preview, Replayed},
    saga::{SagaFilter, SagaState},
};
use serde::Serialize;
use serde_json::json;
use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use super::messages;
use crate::{
    cli::{Dead, DeadList, Replay},
    exit::Failure,
    output::{Output, Tally, visible},
};

/// `dead ...`
pub async fn run(asked: &Dead, store: &str, out: &Output) -> Result<(), Failure> {
    match asked {
        Dead::List(args) => list(args, store, out).await,
        Dead::Show(args) => messages::show(args, store, out).await,
        Dead::Replay(args) if args.ids.is_empty() => replay_by_filter(args, store, out).await,
        Dead::Replay(args) => replay_by_id(args, store, out).await,
        Dead::Quarantine(args) => {
            messages::each(args, store, out, "quarantined", |admin, id, who, note| {
                Box::pin(async move { admin.quarantine(id, &who.actor, note).await })
            })
            .await
        }
        Dead::Discard(args) => {
            messages::each(args, store, out, "discarded", |admin, id, who, note| {
                Box::pin(async move { admin.discard(id, &who.actor, note).await })
            })
            .await
        }
    }
}

async fn list(args: &DeadList, store: &str, out: &Output) -> Result<(), Failure> {
    let filter = Filter {
        reason: args.reason,
        ..messages::filter(&args.which, Some(state(args.quarantined)), &args.page)
    };
    // For programs the last line is where to go on.
    if out.json {
        held_sagas(args, store, out).await?;
    }
    messages::list(filter, args.page.patience, store, out).await?;
    if !out.json {
        held_sagas(args, store, out).await?;
    }
    Ok(())
}

/// Those of sagas are told of beside them: what becomes of their messages is for the saga to say.
async fn held_sagas(args: &DeadList, store: &str, out: &Output) -> Result<(), Failure> {
    let filter = SagaFilter {
        tenant: args.which.tenant.clone(),
        namespace: args.which.namespace.clone(),
        state: Some(SagaState::Held),
        limit: 1000,
        ..SagaFilter::default()
    };
    let page = AnyStore::open(store).await?.admin().sagas(&filter).await?;
    let more = if page.next.is_some() { " or more" } else { "" };
    let text = match page.sagas.len() {
        0 => return Ok(()),
        1 => "1 saga waits for a person: posthouse saga list --state held".to_owned(),
        n => format!("{n}{more} sagas wait for a person: posthouse saga list --state held"),
    };
    let told = json!({ "held_sagas": { "count": page.sagas.len(), "more": page.next.is_some() } });
    out.aside(&told, &text);
    Ok(())
}

const fn state(quarantined: bool) -> State {
    if quarantined { State::Quarantined } else { State::Dead }
}

async fn replay_by_id(args: &Replay, store: &str, out: &Output) -> Result<(), Failure> {
    let note = args.who.note()?;
    let admin = AnyStore::open(store).await?.admin();
    let replay = |id| admin.replay(id, &args.who.actor, note, args.deliver_in);
    messages::in_turn(&args.ids, out, "replayed", replay).await
}

async fn replay_by_filter(args: &Replay, store: &str, out: &Output) -> Result<(), Failure> {
    let bulk = BulkReplay {
        filter: Filter {
            state: Some(state(args.quarantined)),
            reason: args.reason,
            ..messages::wanted(&args.which)
        },
        actor: args.who.actor.clone(),
        note: args.who.note.clone().unwrap_or_default(),
        deliver_in: args.deliver_in,
        limit: args.limit,
        per_second: args.rate,
    };
    let admin = AnyStore::open(store).await?.admin();
    let preview = bulk.preview(&*admin).await?;
    if args.dry_run && out.json {
        return out.document(&preview);
    }
    if args.dry_run {
        out.data(&told(&preview, out))?;
        left_out(&preview.left_out, out);
        return Ok(());
    }
    if !args.yes && preview.count.value == 0 {
        if out.json {
            let nothing = Replayed {
                left_out: preview.left_out,
                ..Replayed::default()
            };
            return summary(&nothing, true, out);
        }
        out.note(match preview.left_out.sum() {
            0 => "No message matches; there is nothing to replay.",
            _ => "There is nothing to replay.",
        });
        left_out(&preview.left_out, out);
        return Ok(());
    }
    if !args.yes {
        left_out(&preview.left_out, out);
        let (n, what) = (number(&preview), "nothing was changed");
        return Err(Failure::not_confirmed(format!("this would replay {n}; {what}"))
            .help("look at them with --dry-run, then add --yes and --note"));
    }
    args.who.note()?;
    let mut tally = Tally::new(Replayed::default(), |done: &Replayed, complete| {
        out.progress("");
        summary(done, complete, out)
    });
    let mut last = Instant::now();
    let progress = |done: &Replayed| {
        tally.sum = done.clone();
        if last.elapsed() > Duration::from_millis(100) {
            last = Instant::now();
            out.progress(&format!("{} of {}", done.replayed + done.moved, preview.count.value));
        }
    };
    let done = bulk.run(&*admin, progress).await?;
    let stopped = done.stopped.clone();
    tally.sum = done;
    tally.end(stopped.is_none())?;
    match stopped {
        Some(cause) => Err(Failure::stopped(format!("stopped before the end: {cause}"))
            .help("what was replayed stays replayed; run it again for the rest")),
        None => Ok(()),
    }
}

/// What `dead replay --json` writes.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    done: &'a Replayed,
    /// Whether it came to the end of what was asked for.
    complete: bool,
}

/// What a replay did, or had done when it ended before its time.
fn summary(done: &Replayed, complete: bool, out: &Output) -> Result<(), Failure> {
    if out.json {
        return out.document(&Document { done, complete });
    }
    let moved = match done.moved {
        0 => String::new(),
        n => format!("; {n} had been moved by somebody else"),
    };
    out.data(&format!("{} replayed{moved}", done.replayed))?;
    if !complete && done.stopped.is_none() {
        out.note("It did not come to its end. One more may have been replayed: posthouse audit --action replay");
    }
    left_out(&done.left_out, out);
    if done.later > 0 {
        let n = done.later;
        out.note(&format!(
            "Left for the next time, because they died after this one had begun: {n}."
        ));
    }
    Ok(())
}

/// Says what matches and is not replayed, and how to include it.
fn left_out(left: &LeftOut, out: &Output) {
    if left.cancelled > 0 {
        let n = left.cancelled;
        out.note(&format!(
            "Left out, because an operator cancelled them: {n}. To replay them: --reason cancelled"
        ));
    }
    if left.lapsed > 0 {
        let n = left.lapsed;
        out.note(&format!(
            "Left out, because their deliver-by has passed: {n}. To replay them: --deliver-in TIME, or --reason lapsed"
        ));
    }
    if left.of_sagas > 0 {
        let n = left.of_sagas;
        out.note(&format!(
            "Left out, because they belong to sagas: {n}. To see those: posthouse saga list --state held"
        ));
    }
}

fn number(preview: &Preview) -> String {
    let (n, more) = (preview.count.value, if preview.count.exact { "" } else { " or more" });
    format!("{n}{more} {}", if n == 1 { "message" } else { "messages" })
}

/// What a replay would do, for people.
fn told(preview: &Preview, out: &Output) -> String {
    let mut text = format!("{} would be replayed; nothing was changed.\n", number(preview));
    for (cause, n) in &preview.causes {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {n:>6}  {}", visible(cause));
    }
    if !preview.sample.is_empty() {
        let _ = write!(text, "\nThe first of them:\n{}", messages::table(&preview.sample, out));
    }
    text
}
