//! Memories are written into an outbox, and relays bring them to a memory service. Whatever is told is read from the store, and the
//! story ends where that is not as told.

mod log;
mod place;
mod stumble;
mod target;

use posthouse::{AuditEntry, AuditFilter, Filter, MessageId, MessageView, State, class};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::sleep;

use place::{Frozen, HASTE, LEASE, MOST, Place, backoff, memory, must};
use stumble::stumbling;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Tells all of it.
pub async fn tell(url: &str, mut say: impl FnMut(String)) -> Result<(), Failure> {
    log::count();
    let place = Place::open(url).await?;
    say(format!(
        "Leases hold {LEASE:?} here, not a minute, and a second of the protocol's backoff passes in a millisecond."
    ));
    let workers = ["worker-a", "worker-b"].map(|name| place.work(name, place.any.store()));
    two_workers(&place, &mut say).await?;
    the_same_again(&place, &mut say).await?;
    busy(&place, &mut say).await?;
    dead(&place, &mut say).await?;
    renewed(&place, &mut say).await?;
    for worker in workers {
        worker.stop().await?;
    }
    takeover(&place, url, &mut say).await?;
    database(&place, &mut say).await?;
    seven_classes(&place, &mut say).await
}

async fn two_workers(place: &Place, say: &mut impl FnMut(String)) -> Result<(), Failure> {
    say("\n1  claim, ack_sent: eight memories, a slow service, two workers.".into());
    let ids = place
        .remember((1..=8).map(|n| memory("private", &format!("fact {n}"))))
        .await?;
    place.until(&ids, State::Done).await?;
    for id in ids {
        let attempts = place.attempts(id).await?;
        must("the number of attempts", attempts.len(), 1)?;
        must("requests and memories", place.memory.seen(id), (1, 1))?;
        let [one] = &attempts[..] else { continue };
        let receipt = one.receipt.as_deref().unwrap_or_default();
        say(format!("   {} stored {receipt}", one.worker));
    }
    say("   -> each was claimed by one of them, and stored once".into());
    Ok(())
}

async fn the_same_again(place: &Place, say: &mut impl FnMut(String)) -> Result<(), Failure> {
    say("\n2  check_dedup: the same text comes again, for the same space and for another.".into());
    let first = place.remember([memory("team", "we ship on Fridays")]).await?;
    place.until(&first, State::Done).await?;
    let again = place.remember([memory("team", "we ship on Fridays")]).await?;
    let other = place.remember([memory("public", "we ship on Fridays")]).await?;
    let mut receipts = Vec::new();
    for (id, space, class) in [
        (first[0], "team", class::SUCCESS),
        (again[0], "team", class::DEDUP_HIT),
        (other[0], "public", class::SUCCESS),
    ] {
        place.until(&[id], State::Done).await?;
        must("what became of it", place.classes(id).await?, vec![class])?;
        let receipt = place.attempts(id).await?.pop().and_then(|attempt| attempt.receipt);
        let receipt = receipt.ok_or("there is no receipt")?;
        say(format!("   {space:<7} {receipt:<7} {class}"));
        receipts.push(receipt);
    }
    must("the receipt of the second", &receipts[1], &receipts[0])?;
    must("requests of the second", place.memory.seen(again[0]), (0, 0))?;
    must("requests of the third", place.memory.seen(other[0]), (1, 1))?;
    say("   -> the earlier memory id stands, and nothing was sent; another space is another memory".into());
    Ok(())
}

async fn busy(place: &Place, say: &mut impl FnMut(String)) -> Result<(), Failure> {
    say("\n3  fail_retry: the service is busy, twice.".into());
    let ids = place.remember([memory("busy", "patience helps")]).await?;
    place.until(&ids, State::Done).await?;
    let classes = place.classes(ids[0]).await?;
    must(
        "what became of it",
        &classes[..],
        &[class::RETRY, class::RETRY, class::SUCCESS],
    )?;
    for (attempt, class) in place.attempts(ids[0]).await?.iter().zip(classes) {
        let said = attempt.code.as_ref().or(attempt.receipt.as_ref());
        say(format!(
            "   attempt {}  {class:<22} {}",
            attempt.attempt,
            said.map_or("", |s| s)
        ));
    }
    Ok(())
}

async fn dead(place: &Place, say: &mut impl FnMut(String)) -> Result<(), Failure> {
    say(
        "\n4  mark_dead: a space that does not exist, and a service that is down for longer than anybody waits.".into(),
    );
    let ids = place
        .remember([memory("nowhere", "lost"), memory("down", "later")])
        .await?;
    place.until(&ids, State::Dead).await?;
    must(
        "what became of the first",
        place.classes(ids[0]).await?,
        vec![class::DEAD],
    )?;
    let [nowhere, down] = [place.find(ids[0]).await?, place.find(ids[1]).await?];
    let reason = |view: &MessageView| view.reason.map(|reason| reason.to_string()).unwrap_or_default();
    say(format!(
        "   nowhere: {} after 1 attempt, {}",
        reason(&nowhere),
        nowhere.last_code.unwrap_or_default()
    ));
    let attempts = place.attempts(ids[1]).await?;
    must("the attempts of the second", attempts.len(), MOST as usize)?;
    say(format!(
        "   down:    {} after {MOST} attempts, {}",
        reason(&down),
        down.last_code.unwrap_or_default()
    ));
    say("   after failure   the protocol waits   with 30 % jitter     it waited here".into());
    let (protocol, scaled) = (backoff(1), backoff(HASTE));
    for (n, pair) in (1..).zip(attempts.windows(2)) {
        let [plain, least, most] = [0.5, 0.0, 1.0].map(|roll| protocol.wait(n, roll).as_secs());
        let waited = pair[1].started_at.since(pair[0].finished_at);
        // Claimed when it was due, or a moment later; never before.
        must("that it waited long enough", waited >= scaled.wait(n, 0.0), true)?;
        let (plain, jitter) = (format!("{plain} s"), format!("{least} s ~ {most} s"));
        say(format!("   {n:<15} {plain:<20} {jitter:<20} {} ms", waited.as_millis()));
    }
    must("the last class", place.classes(ids[1]).await?.pop(), Some(class::DEAD))?;
    Ok(())
}

async fn renewed(place: &Place, say: &mut impl FnMut(String)) -> Result<(), Failure> {
    say("\n5  renew: three memories of one key, claimed together, and the service takes its time.".into());
    let memories = (1..=3).map(|n| memory("slow", &format!("chapter {n}")).order_key("book"));
    let ids = place.remember(memories).await?;
    place.until(&ids, State::Done).await?;
    let mut longest = Duration::ZERO;
    for id in ids {
        must("what became of it", place.classes(id).await?, vec![class::SUCCESS])?;
        for attempt in place.attempts(id).await? {
            let held = attempt.finished_at.since(attempt.started_at);
            longest = longest.max(held);
            say(format!("   {} held it for {:.1} s", attempt.worker, held.as_secs_f64()));
        }
    }
    must("that one was held for longer than its lease", longest > LEASE, true)?;
    say(format!(
        "   -> the last for longer than a lease of {LEASE:?}: it was renewed, and nobody else had it"
    ));
    Ok(())
}

async fn takeover(place: &Place, url: &str, say: &mut impl FnMut(String)) -> Result<(), Failure> {
    say("\n6  Takeover: worker-a has stored a memory, and freezes before it can say so; worker-b comes.".into());
    let ids = place.remember([memory("private", "who was first?")]).await?;
    let id = ids[0];
    let frozen = Frozen::start(place, url).await?;
    let other = place.work("worker-b", place.any.store());
    place.until(&ids, State::Done).await?;
    other.stop().await?;
    let before = (place.find(id).await?, place.attempts(id).await?);
    for attempt in &before.1 {
        let (epoch, worker, outcome) = (attempt.epoch, &attempt.worker, attempt.outcome);
        say(format!("   epoch {epoch}  {worker}  {outcome}"));
    }
    must(
        "what became of it",
        place.classes(id).await?,
        vec![class::RETRY, class::SUCCESS],
    )?;
    must("requests and memories", place.memory.seen(id), (2, 1))?;
    say("   worker-a thaws, with the answer of the service in its hand.".into());
    frozen.thaw.send(())?;
    let entry = conflict(place, id).await?;
    frozen.stop().await?;
    let after = (place.find(id).await?, place.attempts(id).await?);
    must("what is known of it", &after, &before)?;
    say(format!("   audit: {}  {}  {}", entry.actor, entry.action, entry.note));
    say("   -> its lease is lost: that is on record, and nothing else changed. Two requests, one memory".into());
    Ok(())
}

/// Waits for the one line of the audit.
async fn conflict(place: &Place, id: MessageId) -> Result<AuditEntry, Failure> {
    for _ in 0..6000 {
        if let Some(entry) = place.admin.audit(&AuditFilter::of(id)).await?.pop() {
            must("what the audit says", &entry.action[..], class::CONFLICT)?;
            return Ok(entry);
        }
        sleep(Duration::from_millis(10)).await;
    }
    Err("the conflict is not on record".into())
}

async fn database(place: &Place, say: &mut impl FnMut(String)) -> Result<(), Failure> {
    say(
        "\n7  The database stumbles (we make it): no connection for a claim, no answer in time to a settlement.".into(),
    );
    let before = [class::DB_ERROR, class::DB_TIMEOUT].map(log::told);
    let worker = place.work("worker-c", stumbling(place.any.store()));
    let ids = place.remember([memory("private", "all is well")]).await?;
    place.until(&ids, State::Done).await?;
    worker.stop().await?;
    let after = [class::DB_ERROR, class::DB_TIMEOUT].map(log::told);
    must(
        "that both were told",
        before.iter().zip(&after).all(|(b, a)| b < a),
        true,
    )?;
    must("what became of it", place.classes(ids[0]).await?, vec![class::SUCCESS])?;
    must("requests and memories", place.memory.seen(ids[0]), (1, 1))?;
    say("   -> asked again: stored once, one attempt, nothing counted for it".into());
    Ok(())
}

async fn seven_classes(place: &Place, say: &mut impl FnMut(String)) -> Result<(), Failure> {
    say("\n8  What became of it all, by class.".into());
    let filter = Filter {
        namespace: Some(place.namespace.clone()),
        limit: 100,
        ..Filter::default()
    };
    let (mut attempts, mut conflicts) = (BTreeMap::<_, u32>::new(), 0);
    for message in place.admin.list(&filter).await?.messages {
        for class in place.classes(message.id).await? {
            *attempts.entry(class).or_default() += 1;
        }
        conflicts += place.admin.audit(&AuditFilter::of(message.id)).await?.len();
    }
    say("   class                     attempts   audit   log".into());
    for class in class::ALL {
        let attempts = attempts.get(class).copied().unwrap_or_default();
        let audit = if class == class::CONFLICT { conflicts } else { 0 };
        let log = log::told(class);
        must("that it was seen", u64::from(attempts) + audit as u64 + log > 0, true)?;
        say(format!("   {class:<25} {attempts:>8} {audit:>7} {log:>5}"));
    }
    must("the conflicts on record", conflicts, 1)?;
    Ok(())
}
