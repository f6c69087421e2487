//! Replaying many dead messages: by filter, looked at before, paced, and stopped when their destination fails.

use posthouse_core::{
    Admin, Cause, Count, DeadReason, Error, Filter, MessageView, State, Timestamp, admin::COUNTED_AT_MOST,
    explain::on_the_way,
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Which messages to replay, in whose name, and how fast.
///
/// It leaves out what nobody wants to be sent any more, and tells how many: cancelled messages, unless the filter asks for that
/// reason, and those whose deliver-by has passed, unless the filter asks for lapsed ones or they get a new one. Messages of sagas are
/// left out as well: what becomes of those is asked of their saga.
#[derive(Clone, Debug, Default)]
pub struct BulkReplay {
    /// Which: dead ones, or quarantined ones if it says so. Its order and its page are ours to choose.
    pub filter: Filter,
    /// Who asks for it.
    pub actor: String,
    /// Why, for the audit.
    pub note: String,
    /// A new deliver-by for each; with one, those whose deliver-by has passed are sent too.
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
    /// Those that match and would not be replayed.
    pub left_out: LeftOut,
}

/// What matches, and is not replayed unless it is asked for by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    /// An operator cancelled them.
    pub cancelled: u64,
    /// Their deliver-by has passed.
    pub lapsed: u64,
    /// They belong to sagas, which have verbs of their own.
    pub of_sagas: u64,
}

/// What a bulk replay did, or has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Replayed {
    /// Sent round again.
    pub replayed: u64,
    /// Somebody else had moved them before we came.
    pub moved: u64,
    /// They match, and nobody asked for them by name.
    pub left_out: LeftOut,
    /// They died, or were put into quarantine, after it had begun: they are left to the next.
    pub later: u64,
    /// Why it stopped before the end, when it did.
    pub stopped: Option<Cause>,
}

/// How many are looked up at once, and between two looks at how the destinations are.
const PAGE: u32 = 100;
/// How many are looked up at once to be counted only.
const COUNTED_PAGE: u32 = 1000;
const SAMPLE: usize = 5;

/// Where the store stood when it began. What comes after is not what was asked for, and following it might never end.
struct Beginning {
    now: Option<Timestamp>,
    newest: i64,
    read: Instant,
}

impl Beginning {
    async fn of(admin: &dyn Admin) -> Result<Self, Error> {
        let newest = Filter {
            limit: 1,
            ..Filter::default()
        };
        Ok(Self {
            read: Instant::now(),
            now: admin.counts().await?.now,
            newest: admin.list(&newest).await?.messages.first().map_or(i64::MIN, |m| m.seq),
        })
    }

    /// Whether a time of the store has passed by now.
    fn is_over(&self, at: Timestamp) -> bool {
        self.now.is_some_and(|now| at <= now.plus(self.read.elapsed()))
    }

    /// Whether a message came to where it stands only afterwards.
    fn is_before(&self, message: &MessageView) -> bool {
        let since = message.finished_at.unwrap_or(message.updated_at);
        message.seq > self.newest || self.now.is_some_and(|now| since > now)
    }
}

impl LeftOut {
    /// Counts a message that is to be left out. Answers whether it is.
    fn takes(&mut self, message: &MessageView, bulk: &BulkReplay, beginning: &Beginning) -> bool {
        let asked = |reason| bulk.filter.reason == Some(reason);
        let lapsed =
            message.reason == Some(DeadReason::Lapsed) || message.deliver_by.is_some_and(|at| beginning.is_over(at));
        if message.kind.is_of_saga() {
            self.of_sagas += 1;
        } else if message.reason == Some(DeadReason::Cancelled) && !asked(DeadReason::Cancelled) {
            self.cancelled += 1;
        } else if lapsed && !asked(DeadReason::Lapsed) && bulk.deliver_in.is_none() {
            self.lapsed += 1;
        } else {
            return false;
        }
        true
    }

    /// How many in all.
    pub const fn sum(&self) -> u64 {
        self.cancelled + self.lapsed + self.of_sagas
    }
}

impl BulkReplay {
    /// The state of what is replayed.
    fn wanted(&self) -> State {
        self.filter.state.unwrap_or(State::Dead)
    }

    /// Oldest first, so that messages of one key are replayed in their order. A replay keeps a message's number: each is met
    /// once, also when it dies again meanwhile.
    fn page(&self, beyond: Option<i64>, limit: u32) -> Filter {
        Filter {
            state: Some(self.wanted()),
            oldest_first: true,
            beyond,
            limit,
            ..self.filter.clone()
        }
    }

    /// What it would do. Changes nothing.
    pub async fn preview(&self, admin: &dyn Admin) -> Result<Preview, Error> {
        let most = self.limit.unwrap_or(u64::MAX);
        let beginning = Beginning::of(admin).await?;
        let (mut value, mut exact, mut sample, mut beyond) = (0, true, Vec::new(), None);
        let (mut causes, mut left_out) = (BTreeMap::<String, u64>::new(), LeftOut::default());
        loop {
            let page = admin.list(&self.page(beyond, COUNTED_PAGE)).await?;
            for message in page.messages {
                if value >= most {
                    break;
                }
                if beginning.is_before(&message) || left_out.takes(&message, self, &beginning) {
                    continue;
                }
                value += 1;
                *causes.entry(cause_of(&message)).or_default() += 1;
                if sample.len() < SAMPLE {
                    sample.push(message);
                }
            }
            beyond = page.next.filter(|next| *next < beginning.newest);
            if beyond.is_none() || value >= most {
                break;
            }
            if value + left_out.sum() >= u64::from(COUNTED_AT_MOST) {
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
            left_out,
        })
    }

    /// Replays them one by one, each in a transaction of its own, and tells how far it is: also the caller that drops it, or
    /// that gets an error, so knows what was done. Stops when the destination of the next ones is paused or fails; what was
    /// replayed until then stays replayed.
    ///
    /// Only what is dead when it begins is replayed, and each message once.
    pub async fn run(&self, admin: &dyn Admin, mut told: impl FnMut(&Replayed)) -> Result<Replayed, Error> {
        let most = self.limit.unwrap_or(u64::MAX);
        let pause = self.per_second.map(|n| Duration::from_secs(1) / n.max(1));
        // A slow one looks again every second: at its messages, which others may move, and at their destinations.
        let size = self.per_second.map_or(PAGE, |n| n.clamp(1, PAGE));
        let beginning = Beginning::of(admin).await?;
        let wanted = self.wanted();
        let (mut done, mut beyond) = (Replayed::default(), None);
        loop {
            let page = admin.list(&self.page(beyond, size)).await?;
            let (relays, pauses) = (admin.relays().await?, admin.pauses().await?);
            for message in &page.messages {
                if done.replayed >= most {
                    return Ok(done);
                }
                // A page is found first and read then: somebody may have been faster.
                if message.state != wanted {
                    done.moved += 1;
                    continue;
                }
                if beginning.is_before(message) {
                    done.later += 1;
                    continue;
                }
                if done.left_out.takes(message, self, &beginning) {
                    continue;
                }
                let causes = on_the_way(message, &relays, &pauses);
                let stop = |c: &Cause| matches!(c, Cause::Paused { .. } | Cause::BreakerOpen { .. });
                if let Some(cause) = causes.into_iter().find(stop) {
                    done.stopped = Some(cause);
                    return Ok(done);
                }
                match admin.replay(message.id, &self.actor, &self.note, self.deliver_in).await {
                    Ok(()) => done.replayed += 1,
                    Err(Error::IllegalState { .. } | Error::NotFound(_)) => done.moved += 1,
                    Err(e) => return Err(e),
                }
                told(&done);
                if let Some(pause) = pause {
                    tokio::time::sleep(pause).await;
                }
            }
            beyond = page.next.filter(|next| *next < beginning.newest);
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
