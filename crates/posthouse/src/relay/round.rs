//! The one loop: claim, hand out, sleep until there is more to do. What ran out is taken back beside it.

use posthouse_core::{Claim, Error, Look, class};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    Engine, Settings,
    ask::{Ask, Asks, asks},
    hand_out::Found,
    load::Reserved,
    locked, measures,
    points::point,
    repairs::repair_for_ever,
    tell::tell_for_ever,
    watchdog,
};

/// How long the store has for a last word, and the settler to end.
const MOMENT: Duration = Duration::from_millis(500);
/// For how many polls the store takes us for asleep, unless it has rung.
const SLEEP: u32 = 20;
/// The size of a first claim; it doubles for as long as there is more. Until then it is known how fast destinations are.
const FIRST: u32 = 32;
/// How long a claim waits, and how often, until there is room enough: many small ones cost more than they bring.
const GATHER: (Duration, u32) = (Duration::from_millis(1), 2);
/// The wait after a round that failed; it doubles up to the second.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Runs until it is cancelled, and until everything that it holds is settled or given up.
pub(super) async fn run(engine: Arc<Engine>, settling: JoinHandle<()>, cancel: CancellationToken) {
    // Whoever drops this future ends everything that it has started.
    let settling = tokio_util::task::AbortOnDropHandle::new(settling);
    let mut upkeep = JoinSet::new();
    let (renewing, repairing, telling) = (engine.clone(), engine.clone(), engine.clone());
    upkeep.spawn(async move { renewing.held.renew_for_ever(&*renewing.store).await });
    upkeep.spawn(async move { repair_for_ever(&repairing).await });
    upkeep.spawn(async move { tell_for_ever(&telling).await });
    if engine.settings.seed.is_none() {
        upkeep.spawn(watchdog::beat_for_ever(engine.settings.lease));
    }
    let end = rounds(&engine, &cancel).await;
    drain(&engine, end).await;
    upkeep.shutdown().await;
    match timeout_at(
        end.max(Instant::now() + MOMENT),
        engine.store.leave(&engine.settings.name),
    )
    .await
    {
        Ok(Err(error)) => tracing::warn!(%error, "the store was not told that this relay leaves"),
        Err(_) => tracing::warn!("the store does not answer; it was not told that this relay leaves"),
        Ok(Ok(())) => {}
    }
    // The last handle of the settler, and nobody waits for an answer: it ends, or is ended.
    drop(engine);
    timeout(MOMENT, settling).await.ok();
}

/// Runs the loop until it is cancelled, and answers when everything must be over. It is not cut off in the middle of a claim, which
/// may have been granted; but a store that does not answer is not waited for.
async fn rounds(engine: &Arc<Engine>, cancel: &CancellationToken) -> Instant {
    let grace = engine.settings.grace;
    let mut rounds = Rounds::new(engine, cancel);
    let running = rounds.run();
    tokio::pin!(running);
    let over = tokio::select! {
        biased;
        () = cancel.cancelled() => false,
        () = &mut running => true,
    };
    // At once, not when the claim is answered: nothing begins after the stop, and what waits goes back.
    engine.stopping.cancel();
    let end = Instant::now() + grace;
    if !over {
        timeout_at(end - grace / 5, running).await.ok();
    }
    end
}

/// The loop, and what it remembers.
pub(super) struct Rounds<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) cancel: &'a CancellationToken,
    pub(super) freed: watch::Receiver<()>,
    /// How long the store takes us for asleep.
    pub(super) asleep: Option<Instant>,
    /// Whose turn it is among the claims of a round.
    turn: usize,
    /// The most that a claim takes now.
    pub(super) size: u32,
    /// How often it has waited for more room than there is.
    waits: u32,
}

/// How long the loop rests before its next round.
enum Rest {
    /// Not at all.
    None,
    /// Until something is free.
    UntilFree,
    /// Until the store wakes us, not longer than the poll; or, if something was left out, until something is free.
    UntilWoken { limited: bool },
    /// For this long.
    For(Duration),
}

impl<'a> Rounds<'a> {
    fn new(engine: &'a Arc<Engine>, cancel: &'a CancellationToken) -> Self {
        Self {
            freed: engine.freed.subscribe(),
            engine,
            cancel,
            asleep: None,
            turn: 0,
            size: FIRST,
            waits: 0,
        }
    }

    async fn run(&mut self) {
        let mut wait = WAITS.0;
        while !self.cancel.is_cancelled() {
            let rest = match self.round().await {
                Ok(rest) => {
                    wait = WAITS.0;
                    rest
                }
                Err(error) => {
                    tracing::warn!(class = class::of_error(&error), %error, "a round failed");
                    measures::store_error(&error);
                    // It may have been granted something, and taken off the bell, without our knowing.
                    self.asleep = None;
                    // A claim that is too slow grants nothing, and one of fewer messages is faster.
                    self.size = FIRST;
                    let rest = Rest::For(wait);
                    wait = (2 * wait).min(WAITS.1);
                    rest
                }
            };
            self.rest(rest).await;
        }
    }

    /// Takes what there is room for, until there is none or nothing is left. What was committed before the store knew of our sleep
    /// rings for nobody: after each word of it, it looks again.
    async fn round(&mut self) -> Result<Rest, Error> {
        loop {
            let rest = self.take().await?;
            let sleeps = matches!(rest, Rest::UntilWoken { .. }) && !self.cancel.is_cancelled();
            if !sleeps || !self.falls_asleep().await? {
                return Ok(rest);
            }
        }
    }

    /// Tells the store that we sleep, if it does not know. Answers whether it did not.
    async fn falls_asleep(&mut self) -> Result<bool, Error> {
        let Settings { name, poll, .. } = &self.engine.settings;
        let (now, known) = (Instant::now(), self.asleep);
        if known.is_some_and(|until| until > now + 2 * *poll) {
            return Ok(false);
        }
        self.engine.store.asleep(name, SLEEP * *poll).await?;
        self.asleep = Some(now + SLEEP * *poll);
        Ok(known.is_none_or(|until| until <= now))
    }

    async fn take(&mut self) -> Result<Rest, Error> {
        let engine = self.engine;
        // From here on, whatever gets free ends the rest that follows.
        self.freed.mark_unchanged();
        let Asks {
            mut asks,
            most: mut in_all,
            limited,
        } = engine.asks();
        if asks.is_empty() {
            self.waits = 0;
            return Ok(Rest::UntilFree);
        }
        if asks.iter().any(Ask::minds_tenants) {
            // Where there is not room for all, they take turns.
            let turn = self.turn % asks.len();
            asks.rotate_left(turn);
        }
        let mut rest = Rest::UntilWoken { limited };
        let (mut asked, mut richer) = (BTreeSet::new(), BTreeSet::new());
        for ask in asks {
            let most = engine.most(&ask).min(self.size);
            let (room, enough) = (engine.load.free().min(in_all), engine.load.enough(most));
            // A fast destination that is full will not be so for long: it has room, or is not fast any more.
            if room < enough && self.waits < GATHER.1 || in_all == 0 {
                self.waits += 1;
                return Ok(Rest::For(GATHER.0));
            }
            let most = most.min(in_all);
            let Some(mut reserved) = engine.load.reserve(most) else {
                if most == 0 {
                    continue;
                }
                self.waits = 0;
                return Ok(Rest::UntilFree);
            };
            self.turn = self.turn.wrapping_add(1);
            in_all -= reserved.count();
            let (full, found) = if ask.is_wide() && self.is_deep() {
                (self.claim_on(&ask, reserved).await?, Vec::new())
            } else {
                self.claim(engine.ask(&ask, &reserved, reserved.bytes()), &mut reserved)
                    .await?
            };
            asked.extend(ask.tenant.clone());
            if !full {
                ask.found_all();
                continue;
            }
            rest = Rest::None;
            richer.extend(ask.tenant.clone());
            self.weigh(&ask, found).await?;
        }
        self.waits = 0;
        self.size = match rest {
            Rest::None => (2 * self.size).min(engine.settings.batch.max(FIRST)),
            _ => FIRST,
        };
        asked
            .difference(&richer)
            .for_each(|tenant| engine.tenants.widen(tenant));
        Ok(rest)
    }

    /// Tenants of weight have further turns when there was more than one claim could take.
    async fn weigh(&mut self, ask: &Ask, found: Vec<(String, u32)>) -> Result<(), Error> {
        let engine = self.engine;
        for (tenant, turns) in found {
            let weight = engine.settings.weights.get(&tenant).copied().unwrap_or(1);
            let more = turns.saturating_mul(weight - 1).min(ask.most);
            let more = more.min(engine.tenants.room(&tenant));
            let Some(mut reserved) = (more > 0).then(|| engine.load.reserve(more)).flatten() else {
                continue;
            };
            let claim = Claim {
                not_tenants: Vec::new(),
                ..engine.ask(ask, &reserved, reserved.bytes()).tenant(tenant)
            };
            self.claim(claim, &mut reserved).await?;
        }
        Ok(())
    }

    /// Whether there has been more for a while than one claim takes, and the store can do several at a time.
    fn is_deep(&self) -> bool {
        let engine = self.engine;
        // Limits and weights of tenants are kept by claims one after the other.
        let plain = !engine.tenants.has_limits() && engine.settings.weights.is_empty();
        let deep = self.size > FIRST && self.size >= engine.settings.batch;
        plain && deep && engine.store.capabilities().parallel_claim
    }

    /// Claims and hands out.
    async fn claim(&mut self, claim: Claim, reserved: &mut Reserved) -> Result<Found, Error> {
        let asked = Instant::now();
        let look = self.engine.look(&claim).await?;
        Ok(self.hand_out(&claim, look, asked, reserved))
    }

    async fn rest(&mut self, rest: Rest) {
        match rest {
            Rest::None => {}
            Rest::For(wait) => drop(timeout(wait, self.cancel.cancelled()).await),
            Rest::UntilFree => self.sleep(true, false).await,
            Rest::UntilWoken { limited } => self.sleep(limited, true).await,
        }
    }

    async fn sleep(&mut self, may_be_freed: bool, may_be_woken: bool) {
        let engine = self.engine;
        let opens = engine.opens();
        let opened = async {
            match opens {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let freed = async {
            // The sender is the engine's, which is ours: it is not gone.
            let _ = self.freed.changed().await;
        };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => {}
            () = freed, if may_be_freed => {}
            () = opened => {}
            () = engine.look.notified() => {}
            // What another store's loop had reserved and did not need is free without a word.
            () = tokio::time::sleep(engine.settings.poll), if !may_be_woken => {}
            heard = woken(engine), if may_be_woken => if !heard {
                self.asleep = None;
            },
        }
    }
}

impl Engine {
    /// What to ask for now.
    pub(super) fn asks(&self) -> Asks {
        let paused = locked(&self.paused).clone();
        let (routes, tenants) = (self.routes.all(), self.tenants.limited());
        let elsewhere = self.routes.explicit.is_any();
        asks(
            &routes,
            elsewhere,
            &paused,
            &self.unrouted(),
            &tenants,
            self.settings.batch,
        )
    }

    /// Asks the store.
    pub(super) async fn look(&self, claim: &Claim) -> Result<Look, Error> {
        let asked = Instant::now();
        self.pulse.ask();
        point("relay::before_claim").await;
        let look = self.store.look(claim).await?;
        self.expiry.heard(asked, look.ran_out);
        if !look.granted.is_empty() {
            point("relay::after_claim").await;
        }
        self.pulse.answer();
        measures::claimed(look.granted.len(), asked.elapsed());
        Ok(look)
    }

    /// A claim of what was reserved, up to so many bytes, without the topics that nothing can be sent of now.
    pub(super) fn ask(&self, ask: &Ask, reserved: &Reserved, bytes: u64) -> Claim {
        let claim = Claim::new(&*self.settings.name, reserved.count(), self.settings.lease).max_bytes(bytes.max(1));
        Claim {
            namespaces: self.settings.namespaces.clone(),
            not_topics: ask.not_topics.clone(),
            tenant: ask.tenant.clone(),
            not_tenants: ask.not_tenants.clone(),
            // A handler may settle in a transaction of its own.
            apart: !self.settler.bulk().stands_together() || self.routes.any_handler(),
            ..claim
        }
    }

    /// The most that a claim may take: for one tenant, what that has room for by now.
    fn most(&self, ask: &Ask) -> u32 {
        let room = ask.tenant.as_ref().map(|tenant| self.tenants.room(tenant));
        room.map_or(ask.most, |room| room.min(ask.most))
    }

    /// When something is free by itself that is not now.
    fn opens(&self) -> Option<Instant> {
        let routes = self.routes.all();
        routes.iter().filter_map(|route| route.target.opens()).min()
    }
}

/// Sleeps until the store wakes us, not longer than the poll. Answers whether the store can.
async fn woken(engine: &Engine) -> bool {
    let poll = engine.settings.poll;
    let woken = engine.store.wake(poll).await;
    if let Err(error) = &woken {
        tracing::warn!(class = class::of_error(error), %error, "the store cannot wake this relay; it looks by itself");
        tokio::time::sleep(poll).await;
    }
    woken.is_ok()
}

/// What is not sent yet goes back; what is, has until a fifth of the grace is left, which is for settling it.
async fn drain(engine: &Engine, end: Instant) {
    let patience = sleep_until(end - engine.settings.grace / 5);
    let drained = async {
        tokio::select! {
            biased;
            () = engine.held.empty() => return,
            () = patience => engine.stopped.cancel(),
        }
        engine.held.empty().await;
    };
    if timeout_at(end, drained).await.is_err() {
        tracing::error!(
            messages = engine.held.count(),
            "the store does not answer; what is not settled is left to run out"
        );
    }
}
