//! Replaying many dead messages: by filter, looked at before, paced, and stopped when their destination fails.

use posthouse_core::{
    Admin, Cause, Count, Error, Filter, MessageView, State, admin::COUNTED_AT_MOST, explain::on_the_way,
};
use std::{collections::BTreeMap, time::Duration};

/// Which messages to replay, in whose name, and how fast.
#[derive(Clone, Debug, Default)]
pub struct BulkReplay {
    /// Which: dead ones, or quarantined ones if it says so. Its order and its page are ours to choose.
    pub filter: Filter,
    /// Who asks for it.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// A new deliver-by for each.
    pub deliver_in: Option<Duration>,
    /// At most this many.
    pub limit: Option<u64>,
    /// At most this many in a second.
    pub per_second: Option<u32>,
}

/// What a bulk replay would do.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Preview {
    /// How many. Not exact beyond ten thousand, which is where counting stops.
    pub count: Count,
    /// The first of them.
    pub sample: Vec<MessageView>,
    /// Why they are dead: reason and last code, and how many of those that were counted.
    pub causes: Vec<(String, u64)>,
}

/// What a bulk replay did, or has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Replayed {
    /// Sent round again.
    pub replayed: u64,
    /// Somebody else had moved them before we came.
    pub moved: u64,
    /// Why it stopped before the end, when it did.
    pub stopped: Option<Cause>,
}

/// How many are looked up at once, and between two looks at how the destinations are.
const PAGE: u32 = 100;
/// How many are looked up at once to be counted only.
const COUNTED_PAGE: u32 = 1000;
const SAMPLE: usize = 5;

impl BulkReplay {
    /// Oldest first, so that messages of one key are replayed in their order. A replay keeps a message's number: each is met
    /// once, also when it dies again meanwhile.
    fn page(&self, beyond: Option<i64>, limit: u32) -> Filter {
        Filter {
            state: Some(self.filter.state.unwrap_or(State::Dead)),
            oldest_first: true,
            beyond,
            limit,
            ..self.filter.clone()
        }
    }

    /// What it would do. Changes nothing.
    pub async fn preview(&self, admin: &dyn Admin) -> Result<Preview, Error> {
        let most = self.limit.unwrap_or(u64::MAX);
        let (mut value, mut exact, mut sample, mut beyond) = (0, true, Vec::new(), None);
        let mut causes: BTreeMap<String, u64> = BTreeMap::new();
        loop {
            let page = admin.list(&self.page(beyond, COUNTED_PAGE)).await?;
            for message in page
                .messages
                .into_iter()
                .take(usize::try_from(most - value).unwrap_or(usize::MAX))
            {
                value += 1;
                *causes.entry(cause_of(&message)).or_default() += 1;
                if sample.len() < SAMPLE {
                    sample.push(message);
                }
            }
            beyond = page.next;
            if beyond.is_none() || value >= most {
                break;
            }
            if value >= u64::from(COUNTED_AT_MOST) {
                exact = false;
                break;
            }
        }
        let mut causes: Vec<_> = causes.into_iter().collect();
        causes.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        Ok(Preview {
            count: Count { value, exact },
            sample,
            causes,
        })
    }

    /// Replays them one by one, each in a transaction of its own, and tells how far it is. Stops when the destination of the next
    /// ones is paused or fails; what was replayed until then stays replayed.
    pub async fn run(&self, admin: &dyn Admin, mut told: impl FnMut(&Replayed)) -> Result<Replayed, Error> {
        let most = self.limit.unwrap_or(u64::MAX);
        let pause = self.per_second.map(|n| Duration::from_secs(1) / n.max(1));
        let (mut done, mut beyond) = (Replayed::default(), None);
        loop {
            let page = admin.list(&self.page(beyond, PAGE)).await?;
            let (relays, pauses) = (admin.relays().await?, admin.pauses().await?);
            for message in &page.messages {
                if done.replayed >= most {
                    return Ok(done);
                }
                let causes = on_the_way(message, &relays, &pauses);
                let stop = |c: &Cause| matches!(c, Cause::Paused { .. } | Cause::BreakerOpen { .. });
                if let Some(cause) = causes.into_iter().find(stop) {
                    done.stopped = Some(cause);
                    return Ok(done);
                }
                match admin
                    .replay(message.id, &self.actor, &self.reason, self.deliver_in)
                    .await
                {
                    Ok(()) => done.replayed += 1,
                    Err(Error::IllegalState { .. } | Error::NotFound(_)) => done.moved += 1,
                    Err(e) => return Err(e),
                }
                told(&done);
                if let Some(pause) = pause {
                    tokio::time::sleep(pause).await;
                }
            }
            beyond = page.next;
            if beyond.is_none() {
                return Ok(done);
            }
        }
    }
}

/// Why a message is dead, for people who group by it.
fn cause_of(message: &MessageView) -> String {
    let reason = message.reason.map_or("quarantined", |reason| reason.as_str());
    match &message.last_code {
        Some(code) => format!("{reason} after {code}"),
        None => reason.to_owned(),
    }
}
