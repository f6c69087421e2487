//! `posthouse repair` and `posthouse prune`: what relays do by themselves, by hand.

use posthouse::{AnyStore, Prune as Pruning, Pruned, admin::COUNTED_AT_MOST, prune_all, repair as repair_store};
use serde_json::json;

use crate::{
    cli::{Prune, Repair},
    exit::Failure,
    output::{Output, Tally},
};

/// `repair`
pub async fn repair(args: &Repair, store: &str, out: &Output) -> Result<(), Failure> {
    let store = AnyStore::open(store).await?.store();
    let n = repair_store(&*store, args.limit).await?;
    if out.json {
        return out.document(&json!({ "repaired": n }));
    }
    out.data(&match n {
        0 => "no lease has run out".to_owned(),
        1 => "1 lease had run out; its message is free again, or dead".to_owned(),
        n => format!("{n} leases had run out; their messages are free again, or dead"),
    })
}

/// How many are removed in one transaction.
const AT_ONCE: u32 = 1000;

/// `prune`
pub async fn prune(args: &Prune, store: &str, out: &Output) -> Result<(), Failure> {
    let asked = |limit| Pruning::done(args.older_than, limit, &*args.who.actor).states(args.state);
    if args.dry_run {
        let admin = AnyStore::open(store).await?.admin();
        let would = admin.prune(&asked(COUNTED_AT_MOST).dry_run()).await?;
        return dry_run(&would, out);
    }
    if !args.yes {
        return Err(
            Failure::not_confirmed("this removes messages for good; nothing was changed")
                .help("count them with --dry-run, then add --yes and --note"),
        );
    }
    let prune = asked(AT_ONCE).note(args.who.note()?);
    let admin = AnyStore::open(store).await?.admin();
    let mut tally = Tally::new(Pruned::default(), |sum: &Pruned, complete| pruned(sum, complete, out));
    prune_all(&*admin, prune, |sum| tally.sum = *sum).await?;
    tally.end(true)
}

fn pruned(sum: &Pruned, complete: bool, out: &Output) -> Result<(), Failure> {
    if out.json {
        return out.document(&json!({
            "done": sum.done, "dead": sum.dead, "dedupe_keys": sum.dedupe_keys, "entries": sum.entries,
            "inbox": sum.inbox, "sagas": sum.sagas, "audit": sum.audit, "complete": complete,
        }));
    }
    out.data(&format!("removed {}", counts(sum, |n| n.to_string())))
}

/// Prints the counts of a dry run. Counting stops at a limit, as it does in `stats`.
fn dry_run(would: &Pruned, out: &Output) -> Result<(), Failure> {
    if out.json {
        return out.document(&json!({
            "done": would.done, "dead": would.dead, "dedupe_keys": would.dedupe_keys, "entries": would.entries,
            "inbox": would.inbox, "sagas": would.sagas, "exact": !would.more, "dry_run": true,
        }));
    }
    let at_most = u64::from(COUNTED_AT_MOST);
    let count = |n: u64| {
        if n >= at_most {
            format!("{n} or more")
        } else {
            n.to_string()
        }
    };
    out.data(&format!("would remove {}; nothing was changed", counts(would, count)))?;
    if would.more {
        out.note("There is more than was counted.");
    }
    Ok(())
}

fn counts(pruned: &Pruned, count: impl Fn(u64) -> String) -> String {
    format!(
        "{} done and {} dead messages, {} dedupe keys, {} ledger entries, {} inbox rows and {} sagas",
        count(pruned.done),
        count(pruned.dead),
        count(pruned.dedupe_keys),
        count(pruned.entries),
        count(pruned.inbox),
        count(pruned.sagas)
    )
}
