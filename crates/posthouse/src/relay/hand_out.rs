//! What a claim was granted is handed out: messages of a key in a line, what its tenant has no room for back to the store.

use posthouse_core::{Claim, Claimed, Look};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};
use tokio::time::Instant;

use super::{
    Engine,
    line::{self, Line, Work},
    load::Reserved,
    round::Rounds,
};

/// Whether a claim was granted all that it asked for, and how many each tenant got.
pub(super) type Found = (bool, Vec<(String, u32)>);

impl Rounds<'_> {
    /// Hands out what a claim was granted. Whoever has no place goes back.
    pub(super) fn hand_out(&mut self, claim: &Claim, look: Look, asked: Instant, reserved: &mut Reserved) -> Found {
        let claimed = look.granted;
        let full = claimed.len() >= claim.batch as usize;
        // Who is awake is not rung for; and what was left is not rung for again.
        if claim.wakes(claimed.len()) || !claimed.is_empty() && !look.complete {
            self.asleep = None;
        }
        let mut found: BTreeMap<String, u32> = BTreeMap::new();
        if !self.engine.settings.weights.is_empty() {
            for one in &claimed {
                *found.entry(one.delivery.tenant.clone()).or_default() += 1;
            }
        }
        for (first, rest) in by_key(claimed) {
            let line = std::iter::once(first).chain(rest);
            let mut line = line.filter_map(|claimed| work(self.engine, claimed, claim, asked, reserved));
            match line.next() {
                Some(first) if first.seat.is_some() => {
                    let mut rest: VecDeque<_> = line.collect();
                    let seated = rest.iter().take_while(|work| work.seat.is_some()).count();
                    self.give_back(rest.split_off(seated).into_iter());
                    Line::begin(self.engine, first, rest);
                }
                first => self.give_back(first.into_iter().chain(line)),
            }
        }
        (full, found.into_iter().collect())
    }

    /// What its tenant has no room for goes back at once, so that it is held by nobody.
    fn give_back(&self, line: impl Iterator<Item = Work>) {
        let mut line = line.peekable();
        if line.peek().is_some() {
            self.engine.news.notify_one();
        }
        line::give_back(self.engine, line);
    }
}

/// None is left over: there are as many shares as the claim asked for.
fn work(engine: &Engine, claimed: Claimed, claim: &Claim, asked: Instant, reserved: &mut Reserved) -> Option<Work> {
    let Claimed {
        lease,
        delivery,
        deliver_within,
    } = claimed;
    Some(Work {
        grip: engine.held.take(lease, asked),
        _share: reserved.share(delivery.payload.len())?,
        seat: engine.tenants.enter(&delivery.tenant),
        delivery: Arc::new(delivery),
        deliver_within,
        asked,
        answered: Instant::now(),
        apart: claim.apart,
    })
}

/// The messages of each key together, in their order: the first, and those behind it. Those without a key alone.
fn by_key(claimed: Vec<Claimed>) -> Vec<(Claimed, Vec<Claimed>)> {
    let mut lines: Vec<(Claimed, Vec<Claimed>)> = Vec::with_capacity(claimed.len());
    let mut keys: HashMap<(String, String, String), usize> = HashMap::new();
    for one in claimed {
        let d = &one.delivery;
        let key = d
            .order_key
            .clone()
            .map(|key| (d.namespace.clone(), d.tenant.clone(), key));
        let known = key.map(|key| *keys.entry(key).or_insert(lines.len()));
        match known.and_then(|at| lines.get_mut(at)) {
            Some((_, rest)) => rest.push(one),
            None => lines.push((one, Vec::new())),
        }
    }
    lines
}
