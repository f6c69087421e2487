//! Claims side by side, where there is more than one claim takes: while one waits for the disk, another is at work.

use posthouse_core::{Claim, Error, Look};
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
};
use tokio::time::Instant;

use super::{
    Engine,
    ask::{Ask, Asks},
    load::Reserved,
    round::Rounds,
};

/// The most claims at a time, and in a row before everything is looked at again.
const CLAIMS: usize = 2;
const MOST_CLAIMS: usize = 64;

impl Rounds<'_> {
    /// Claim after claim for as long as each finds what it asked for, and there is room; some of them at a time: while one waits for the
    /// disk, another is at work. Answers whether there may be more.
    pub(super) async fn claim_on(&mut self, ask: &Ask, first: Reserved) -> Result<bool, Error> {
        let engine = self.engine;
        let bytes = first.bytes() / CLAIMS as u64;
        let mut under_way = vec![UnderWay::begin(engine, ask, first, bytes)];
        let (mut more, mut full, mut failed) = (true, true, None);
        for _ in 0..MOST_CLAIMS {
            tokio::select! {
                biased;
                (claim, asked, mut reserved, look) = any(&mut under_way) => match look {
                    // At once, whatever becomes of the others: nothing is renewed that is not handed out.
                    Ok(look) => {
                        full = self.hand_out(&claim, look, asked, &mut reserved).0;
                        more &= full;
                    }
                    Err(error) => {
                        more = false;
                        failed = Some(error);
                    }
                },
                _ = self.freed.changed(), if more && under_way.len() < CLAIMS => {}
            }
            more &= !self.cancel.is_cancelled();
            if more && under_way.len() < CLAIMS {
                match self.another(&under_way) {
                    Another::Claim(ask, reserved, bytes) => {
                        under_way.push(UnderWay::begin(engine, &ask, reserved, bytes));
                    }
                    Another::Later => {}
                    Another::None => more = false,
                }
            }
            if under_way.is_empty() {
                break;
            }
        }
        while !under_way.is_empty() {
            let (claim, asked, mut reserved, look) = any(&mut under_way).await;
            match look {
                Ok(look) => full |= self.hand_out(&claim, look, asked, &mut reserved).0,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(full || more), Err)
    }

    /// One more claim, beside others, which have their part of the room and of the bytes.
    fn another(&self, under_way: &[UnderWay<'_>]) -> Another {
        let engine = self.engine;
        let Asks { mut asks, most, .. } = engine.asks();
        let Some(ask) = asks.pop().filter(|ask| asks.is_empty() && ask.is_wide()) else {
            return Another::None;
        };
        let wanted = ask.most.min(self.size);
        let room = wanted.min(most.saturating_sub(under_way.iter().map(|claim| claim.room).sum()));
        if room.min(engine.load.free()) < engine.load.enough(wanted) {
            return Another::Later;
        }
        let Some(reserved) = engine.load.reserve(room) else {
            return Another::Later;
        };
        let taken = under_way.iter().map(|claim| claim.bytes).sum();
        match reserved.bytes().saturating_sub(taken) {
            0 => Another::Later,
            bytes => Another::Claim(ask, reserved, bytes),
        }
    }
}

/// Whether another claim is made.
enum Another {
    /// For so many bytes.
    Claim(Ask, Reserved, u64),
    /// There is no room for it now.
    Later,
    /// Not of this kind.
    None,
}

/// A claim under way, and what room it may take up.
struct UnderWay<'a> {
    room: u32,
    bytes: u64,
    answer: Pin<Box<dyn Future<Output = Answered> + Send + 'a>>,
}

/// What was asked for, when, the room for it, and the answer.
type Answered = (Claim, Instant, Reserved, Result<Look, Error>);

impl<'a> UnderWay<'a> {
    fn begin(engine: &'a Arc<Engine>, ask: &Ask, reserved: Reserved, bytes: u64) -> Self {
        let (asked, claim) = (Instant::now(), engine.ask(ask, &reserved, bytes));
        Self {
            room: reserved.count(),
            bytes,
            answer: Box::pin(async move {
                let look = engine.look(&claim).await;
                (claim, asked, reserved, look)
            }),
        }
    }
}

/// The first answer.
async fn any(under_way: &mut Vec<UnderWay<'_>>) -> Answered {
    poll_fn(|context| {
        for at in 0..under_way.len() {
            if let Poll::Ready(answered) = under_way[at].answer.as_mut().poll(context) {
                drop(under_way.remove(at));
                return Poll::Ready(answered);
            }
        }
        Poll::Pending
    })
    .await
}
