//! `posthouse repair` and `posthouse prune`: what relays do by themselves, by hand.

use posthouse::{AnyStore, Pruned, repair as repair_store};
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
    if !args.yes {
        return Err(
            Failure::not_confirmed("this removes messages for good; nothing was changed")
                .help("see how much there is: posthouse stats; then add --yes"),
        );
    }
    let admin = AnyStore::open(store).await?.admin();
    let mut tally = Tally::new(Pruned::default(), |sum: &Pruned, _| pruned(sum, out));
    loop {
        let round = admin.prune(args.older_than, AT_ONCE).await?;
        tally.sum.messages += round.messages;
        tally.sum.dedupe_keys += round.dedupe_keys;
        tally.sum.entries += round.entries;
        tally.sum.inbox += round.inbox;
        tally.sum.sagas += round.sagas;
        if !round.more {
            return tally.end(true);
        }
    }
}

fn pruned(sum: &Pruned, out: &Output) -> Result<(), Failure> {
    if out.json {
        return out.document(&json!({
            "messages": sum.messages,
            "dedupe_keys": sum.dedupe_keys,
            "entries": sum.entries,
            "inbox": sum.inbox,
            "sagas": sum.sagas,
        }));
    }
    out.data(&format!(
        "removed {} messages, {} dedupe keys, {} entries of the ledger, {} of the inbox and {} sagas",
        sum.messages, sum.dedupe_keys, sum.entries, sum.inbox, sum.sagas
    ))
}
