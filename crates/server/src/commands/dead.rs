//! `posthouse dead`: looking at dead letters, and deciding about them.

use posthouse::{
    AnyStore, Filter, State,
    bulk::{BulkReplay, Preview, Replayed},
};
use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use super::messages;
use crate::{
    cli::{Dead, DeadList, Replay},
    exit::Failure,
    output::{Output, visible},
};

/// `dead ...`
pub async fn run(asked: &Dead, store: &str, out: &Output) -> Result<(), Failure> {
    match asked {
        Dead::List(args) => list(args, store, out).await,
        Dead::Show(args) => messages::show(args, store, out).await,
        Dead::Replay(args) if args.ids.is_empty() => replay_by_filter(args, store, out).await,
        Dead::Replay(args) => replay_by_id(args, store, out).await,
        Dead::Quarantine(args) => {
            messages::each(args, store, out, "quarantined", |admin, id, who| {
                Box::pin(async move { admin.quarantine(id, &who.actor, &who.reason).await })
            })
            .await
        }
        Dead::Discard(args) => {
            messages::each(args, store, out, "discarded", |admin, id, who| {
                Box::pin(async move { admin.discard(id, &who.actor, &who.reason).await })
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
    messages::list(filter, args.page.patience, store, out).await
}

const fn state(quarantined: bool) -> State {
    if quarantined { State::Quarantined } else { State::Dead }
}

async fn replay_by_id(args: &Replay, store: &str, out: &Output) -> Result<(), Failure> {
    let admin = AnyStore::open(store).await?.admin();
    for id in &args.ids {
        admin
            .replay(*id, &args.who.actor, &args.who.reason, args.deliver_in)
            .await?;
        messages::done(out, *id, "replayed")?;
    }
    Ok(())
}

async fn replay_by_filter(args: &Replay, store: &str, out: &Output) -> Result<(), Failure> {
    let bulk = BulkReplay {
        filter: Filter {
            state: Some(state(args.quarantined)),
            reason: args.because,
            ..messages::wanted(&args.which)
        },
        actor: args.who.actor.clone(),
        reason: args.who.reason.clone(),
        deliver_in: args.deliver_in,
        limit: args.limit,
        per_second: args.rate,
    };
    let admin = AnyStore::open(store).await?.admin();
    let preview = bulk.preview(&*admin).await?;
    if args.dry_run {
        return if out.json {
            out.document(&preview)
        } else {
            out.data(&told(&preview, out))
        };
    }
    if !args.yes && preview.count.value == 0 {
        out.note("No message matches; there is nothing to replay.");
        return Ok(());
    }
    if !args.yes {
        let (n, what) = (number(&preview), "nothing was changed");
        return Err(Failure::not_confirmed(format!("this would replay {n}; {what}"))
            .help("look at them with --dry-run, then add --yes"));
    }
    let mut last = Instant::now();
    let progress = |done: &Replayed| {
        if last.elapsed() > Duration::from_millis(100) {
            last = Instant::now();
            out.progress(&format!("{} of {}", done.replayed + done.moved, preview.count.value));
        }
    };
    let done = bulk.run(&*admin, progress).await;
    out.progress("");
    let done = done?;
    if out.json {
        out.document(&done)?;
    } else {
        let moved = match done.moved {
            0 => String::new(),
            n => format!("; {n} had been moved by somebody else"),
        };
        out.data(&format!("{} replayed{moved}", done.replayed))?;
    }
    match done.stopped {
        Some(cause) => Err(Failure::stopped(format!("stopped before the end: {cause}"))
            .help("what was replayed stays replayed; run it again for the rest")),
        None => Ok(()),
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
