//! What a claimer remembers between claims: which lanes have work, and how far it has passed in each.
//!
//! Without it, each claim would walk the index entries of all messages that a long transaction elsewhere keeps from being
//! cleaned up, and slow down for as long as that lasts. A floor only delays, bounded; it never skips: it rises no higher than
//! a place below which nothing new can be committed, it falls to what a claim left, and every so often it is looked below the
//! floors, to find what a claim left that crashed.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant, SystemTime},
};

/// One set of floors for each choice of namespaces.
#[derive(Default)]
pub(crate) struct FloorBook {
    sets: HashMap<Vec<String>, Floors>,
    /// How many connections had been lost when the floors were last checked.
    lost: u64,
}

/// Lanes that gave nothing are let go after a while, but for so few that looking into them costs next to nothing.
const FEW: usize = 8;
const PATIENCE: Duration = Duration::from_secs(2);

/// The most lanes one claim looks into, and the most that are remembered.
const WINDOW: usize = 128;
const MOST_LANES: usize = 100_000;
const MOST_SETS: usize = 64;

/// How soon it is looked below the floors after a claim has failed.
const HURRY: Duration = Duration::from_secs(1);

/// How often the floor of the keys is found anew.
const ANEW: Duration = Duration::from_secs(300);

/// How many messages taken make a sample worth while before its time, and how soon it may be.
const MUCH: usize = 1000;
const SOON: Duration = Duration::from_millis(20);

impl FloorBook {
    /// Forgets every floor: the database may not be the one that they were sampled on.
    pub(crate) fn forget(&mut self) {
        self.sets.values_mut().for_each(Floors::forget);
    }

    /// Forgets every floor if connections were lost since the last call: `lost` is how many were lost so far. A server that crashes closes all of them, and may
    /// come back without its last commits; then new messages get numbers below the floors.
    pub(crate) fn outlives(&mut self, lost: u64) {
        if self.lost != lost {
            self.lost = lost;
            self.forget();
        }
    }

    pub(crate) fn of(&mut self, namespaces: &[String]) -> &mut Floors {
        if self.sets.len() >= MOST_SETS && !self.sets.contains_key(namespaces) {
            self.sets.clear();
        }
        self.sets.entry(namespaces.to_vec()).or_default()
    }

    /// [`Floors::lower`], whoever was looking.
    pub(crate) fn lower(&mut self, lane: i64, pos: i64) {
        self.sets.values_mut().for_each(|floors| floors.lower(lane, pos));
    }
}

/// A sample of the sequence: once no transaction older than `x` is open, no place of `s` or below can still appear.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) s: i64,
    pub(crate) x: i64,
    pub(crate) oldest: i64,
    /// The floor of the keys, for a base that was safe before.
    pub(crate) keys: i64,
    /// When the server was started.
    pub(crate) server: SystemTime,
}

/// What was known when a sample was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) era: u64,
    seen: i64,
    /// What is safe.
    pub(crate) safe: i64,
    /// The floor of the keys; nothing, when it is to be found anew.
    pub(crate) keys: i64,
}

/// The floors of one choice of namespaces.
#[derive(Default)]
pub(crate) struct Floors {
    /// Lanes that have given something of late.
    lanes: BTreeMap<i64, Known>,
    /// The floors of lanes that were let go: they are found again as gaps are, and then go on from there. That walks over all that is
    /// not cleaned up in them.
    idle: HashMap<i64, i64>,
    cursor: Option<i64>,
    base: i64,
    /// No message with a key that claims visit stands in its line here or below, nor does a lease in its first place.
    keys: i64,
    waiting: Option<Sample>,
    /// The last number that a sample saw, and on which server.
    seen: i64,
    server: Option<SystemTime>,
    /// Rises when everything is forgotten.
    era: u64,
    /// When the floor of the keys was last found anew.
    anew: Option<Instant>,
    /// When a sample was last asked for.
    asked: Option<Instant>,
    /// Messages that were taken since then.
    taken: usize,
    /// When it is looked below the floors again, and whether that is under way.
    pass: Option<Instant>,
    looking: bool,
    /// How many plans were made.
    turn: u64,
    /// The last claim took nothing: there is nothing to pass, and an idle relay need hardly ask how far it could.
    quiet: bool,
}

/// A lane that is looked into.
#[derive(Clone, Copy)]
struct Known {
    floor: i64,
    /// When it was last found to have something.
    gave: Instant,
    /// Claims up to this turn do not raise it: they may have looked while others were kept from what is left.
    lowered: u64,
}

/// Which lanes to look into, from where, and between which bounds to look for lanes that are not known yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) lanes: Vec<i64>,
    pub(crate) floors: Vec<i64>,
    pub(crate) lo: i64,
    pub(crate) hi: i64,
    /// The floor of the keys.
    pub(crate) keys: i64,
    /// The start time of the server that all of these floors were sampled on; none without a sample, and then there are no floors.
    pub(crate) server: Option<SystemTime>,
    turn: u64,
    pub(crate) era: u64,
    /// How many lanes there was room for.
    window: usize,
    /// How far floors may rise by it: what was safe before it was asked. What has become safe since then may have been committed
    /// after it looked.
    base: i64,
}

impl Plan {
    /// To look everywhere, remembering nothing.
    pub(crate) const fn blank() -> Self {
        Self {
            lanes: Vec::new(),
            floors: Vec::new(),
            lo: i64::MIN,
            hi: i64::MAX,
            keys: 0,
            server: None,
            turn: 0,
            era: 0,
            window: WINDOW,
            base: 0,
        }
    }
}

impl Floors {
    /// Whether it is time for a sample, which who asks then takes. When much is taken, the next claims would soon walk over all of that,
    /// so it comes sooner; when nothing is, it is only to find out whether the numbers went back.
    pub(crate) fn wants_sample(&mut self, now: Instant, every: Duration, at_least: Duration) -> bool {
        let every = match (self.quiet, self.taken >= MUCH) {
            (true, _) => at_least,
            (false, true) => every.min(SOON),
            (false, false) => every,
        };
        let wants = self.asked.is_none_or(|at| now.duration_since(at) >= every);
        if wants {
            self.asked = Some(now);
            self.taken = 0;
        }
        wants
    }

    /// What a sample must be told. Now and then the floor of the keys is found anew, in case that what it was made of came back, as commits do that
    /// a crash has lost.
    pub(crate) fn asking(&mut self, now: Instant) -> Asked {
        let anew = self.anew.is_none_or(|at| now.duration_since(at) >= ANEW);
        if anew {
            self.anew = Some(now);
        }
        Asked {
            era: self.era,
            seen: self.seen,
            safe: self.base,
            keys: if anew { 0 } else { self.keys },
        }
    }

    /// Takes a sample. The one before it becomes the base when no transaction that is older than it is open any more. Where another server
    /// has taken over, or the numbers went back, everything is forgotten, and so are samples that were asked for before.
    pub(crate) fn sampled(&mut self, asked: Asked, sample: Sample) {
        if asked.era != self.era {
            return;
        }
        if sample.s < asked.seen || self.server.is_some_and(|server| server != sample.server) {
            self.forget();
            return;
        }
        self.server = Some(sample.server);
        self.seen = self.seen.max(sample.s);
        self.keys = match asked.keys {
            0 => sample.keys,
            _ => self.keys.max(sample.keys),
        };
        match self.waiting {
            Some(earlier) if sample.oldest >= earlier.x => {
                self.base = self.base.max(earlier.s);
                self.waiting = Some(sample);
            }
            Some(_) => {}
            None => self.waiting = Some(sample),
        }
    }

    /// Forgets every lane and floor. Plans and samples that were made before have no effect.
    fn forget(&mut self) {
        *self = Self {
            era: self.era + 1,
            ..Self::default()
        };
    }

    /// Whether a plan or a sample of this era still holds: nothing was forgotten since.
    pub(crate) fn holds(&self, era: u64) -> bool {
        self.era == era
    }

    /// Where the next claim looks. Lanes take turns when there are more than fit.
    pub(crate) fn plan(&mut self, batch: u32) -> Plan {
        self.turn += 1;
        let window = WINDOW.min(batch as usize).max(1);
        let from = self.cursor.unwrap_or(i64::MIN);
        let chosen: Vec<_> = self
            .lanes
            .range(from..)
            .take(window)
            .map(|(l, known)| (*l, known.floor))
            .collect();
        let bounds = (chosen.first().map(|c| c.0), chosen.last().map(|c| c.0));
        // Between the neighbours of the window: further out are lanes that we know, and whose turn it is not.
        let lo = bounds
            .0
            .and_then(|first| self.lanes.range(..first).next_back())
            .map_or(i64::MIN, |(l, _)| l.saturating_add(1));
        let above = bounds
            .1
            .and_then(|last| self.lanes.range(last.saturating_add(1)..).next())
            .map(|(l, _)| *l);
        self.cursor = above;
        let hi = above.map_or(i64::MAX, |l| l.saturating_sub(1));
        Plan {
            lanes: chosen.iter().map(|c| c.0).collect(),
            floors: chosen.iter().map(|c| c.1).collect(),
            lo,
            hi,
            keys: self.keys,
            server: self.server,
            turn: self.turn,
            era: self.era,
            window,
            base: self.base,
        }
    }

    /// How many messages a claim was granted, with keys and without.
    pub(crate) fn granted(&mut self, count: usize) {
        self.quiet = count == 0;
        self.taken += count;
    }

    /// To look into all lanes, remembering none of them.
    pub(crate) fn everywhere(&self) -> Plan {
        Plan {
            keys: self.keys,
            server: self.server,
            era: self.era,
            ..Plan::blank()
        }
    }

    /// What a claim took: (lane, place) of each message. `cut` says that it may have left messages that were free.
    pub(crate) fn claimed(&mut self, plan: &Plan, taken: impl Iterator<Item = (i64, i64)>, cut: bool, now: Instant) {
        if plan.era != self.era {
            return;
        }
        let mut highest: HashMap<i64, i64> = HashMap::new();
        // What had no place in its line says nothing of what is before it.
        let mut lowest: HashMap<i64, i64> = HashMap::new();
        for (lane, pos) in taken {
            let high = highest.entry(lane).or_insert(pos);
            *high = pos.max(*high);
            if pos > 0 {
                let low = lowest.entry(lane).or_insert(pos);
                *low = pos.min(*low);
            }
        }
        // One that brought something came at a busy time: who is silent just now has more soon.
        let room = if highest.is_empty() { plan.window } else { WINDOW };
        for lane in &plan.lanes {
            let gave = highest.get(lane).copied();
            let passed = if cut { gave } else { Some(plan.base) };
            let Some(known) = self.lanes.get_mut(lane) else {
                continue;
            };
            if let Some(passed) = passed.filter(|_| plan.turn > known.lowered) {
                known.floor = passed.min(plan.base).max(known.floor);
            }
            if gave.is_some() {
                known.gave = now;
            } else if !cut {
                let silent = now.duration_since(known.gave);
                self.rest(*lane, silent, room);
            }
        }
        for lane in highest.into_keys() {
            if self.lanes.len() < MOST_LANES {
                let floor = self.idle.remove(&lane).unwrap_or(0);
                self.lanes.entry(lane).or_insert(Known {
                    floor,
                    gave: now,
                    lowered: self.turn,
                });
            }
        }
        // A lane that it came upon was looked into from its beginning. What was taken there at a floor or below it was left there, and there may be more.
        for (lane, pos) in lowest {
            let floor = self.lanes.get(&lane).map_or(0, |known| known.floor);
            if pos <= floor && plan.lanes.binary_search(&lane).is_err() {
                self.lower(lane, pos);
            }
        }
    }

    /// Something is left at this place: the floor of its lane falls below it, and is not raised by claims that are under way.
    pub(crate) fn lower(&mut self, lane: i64, pos: i64) {
        if let Some(known) = self.lanes.get_mut(&lane) {
            known.floor = known.floor.min(pos.saturating_sub(1));
            known.lowered = self.turn;
        } else if let Some(floor) = self.idle.get_mut(&lane) {
            *floor = pos.saturating_sub(1).min(*floor);
        }
    }

    /// A claim failed: what it had taken is free again, and others may have passed it; also in lanes that it came upon, and others know. The server may
    /// not have heard yet that it failed, so it is looked below the floors soon.
    pub(crate) fn failed(&mut self, plan: &Plan, now: Instant) {
        if plan.era != self.era {
            return;
        }
        let floors: HashMap<_, _> = plan.lanes.iter().zip(&plan.floors).collect();
        for (lane, known) in self.lanes.range_mut(plan.lo..=plan.hi) {
            known.floor = known.floor.min(floors.get(lane).map_or(0, |floor| **floor));
            known.lowered = self.turn;
        }
        let soon = now + HURRY;
        self.pass = Some(self.pass.map_or(soon, |due| due.min(soon)));
    }

    /// The lanes and floors to look below, when it is time for that: who asks does it.
    pub(crate) fn wants_pass(&mut self, now: Instant, every: Duration) -> Vec<(i64, i64)> {
        if self.looking || now < *self.pass.get_or_insert_with(|| now + every) {
            return Vec::new();
        }
        let floors = self.lanes.iter().map(|(lane, known)| (*lane, known.floor));
        let floors: Vec<_> = floors.filter(|(_, floor)| *floor > 0).collect();
        self.looking = !floors.is_empty();
        self.pass = (!self.looking).then_some(now + every);
        floors
    }

    /// Such a look has ended. The more there is to walk over, the longer it takes: the next one comes so late that they take a tenth of the time.
    pub(crate) fn passed(&mut self, began: Instant, now: Instant, every: Duration) {
        self.looking = false;
        let next = now + every.max(9 * now.duration_since(began));
        self.pass = Some(self.pass.map_or(next, |due| due.min(next)));
    }

    /// Whether this plan leaves out lanes that are known to have work, before its window or after it.
    pub(crate) fn leaves_out(&self, plan: &Plan) -> bool {
        plan.lanes.len() < self.lanes.len()
    }

    /// Lets a lane go that gave nothing: at once where more are known than there is room for, else after a while.
    fn rest(&mut self, lane: i64, silent: Duration, room: usize) {
        let known = self.lanes.len();
        if known <= room && (known <= FEW || silent <= PATIENCE) {
            return;
        }
        if let Some(known) = self.lanes.remove(&lane) {
            if self.idle.len() >= MOST_LANES {
                self.idle.clear();
            }
            self.idle.insert(lane, known.floor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn taken(floors: &mut Floors, plan: &Plan, pos: i64) {
        floors.claimed(plan, [(7, pos)].into_iter(), true, Instant::now());
    }

    /// A message with a low place may be committed after a claim has looked, and be safe to pass by the time that it answers.
    #[test]
    fn a_claim_passes_only_what_was_safe_before_it_looked() {
        let (mut floors, now) = (Floors::default(), Instant::now());
        taken(&mut floors, &Plan::blank(), 50);
        let early = floors.plan(10);
        for x in [1, 2] {
            let asked = floors.asking(now);
            floors.sampled(asked, sample(80 + 20 * x, x, 0));
        }
        taken(&mut floors, &early, 90);
        let late = floors.plan(10);
        assert_eq!((&early.floors, &late.floors), (&vec![0], &vec![0]));
        taken(&mut floors, &late, 95);
        let next = floors.plan(10);
        assert_eq!(next.floors, [95]);
        taken(&mut floors, &next, 130);
        assert_eq!(floors.plan(10).floors, [100]);
    }

    #[test]
    fn much_that_was_taken_brings_the_next_sample_sooner() {
        let (mut floors, now) = (Floors::default(), Instant::now());
        assert!(floors.wants_sample(now, LONG, LONG));
        let soon = now + SOON;
        taken(&mut floors, &Plan::blank(), 50);
        assert!(!floors.wants_sample(soon, LONG, LONG));
        floors.granted(MUCH);
        assert!(!floors.wants_sample(now, LONG, LONG) && floors.wants_sample(soon, LONG, LONG));
        assert!(!floors.wants_sample(soon + SOON, LONG, LONG));
    }

    /// Floors that know of so many lanes, the last look at which gave something at `now`.
    fn knowing(lanes: i64, now: Instant) -> Floors {
        let mut floors = Floors::default();
        floors.claimed(&Plan::blank(), (0..lanes).map(|lane| (lane, 5)), true, now);
        floors
    }

    /// Finding it again would walk over all that it has ever given, for as long as that is not cleaned up.
    #[test]
    fn a_lane_that_gave_nothing_once_is_still_known() {
        let now = Instant::now();
        let mut floors = knowing(1, now);
        for seconds in [1, 10, 1000] {
            let then = now + Duration::from_secs(seconds);
            let plan = floors.plan(10);
            assert_eq!(plan.lanes, [0]);
            floors.claimed(&plan, std::iter::empty(), false, then);
        }
    }

    #[test]
    fn of_many_lanes_those_that_give_nothing_for_a_while_are_let_go() {
        let now = Instant::now();
        let mut floors = knowing(100, now);
        let mut look = |seconds| {
            let then = now + Duration::from_secs(seconds);
            let plan = floors.plan(500);
            floors.claimed(&plan, std::iter::empty(), false, then);
            plan.lanes.len()
        };
        assert_eq!([look(1), look(2), look(3), look(4)], [100, 100, 100, FEW]);
    }

    /// Found anew, they would be walked through from their beginning.
    #[test]
    fn a_claim_that_brings_something_lets_nobody_go_at_once() {
        let now = Instant::now();
        let mut floors = knowing(10, now);
        for _ in 0..5 {
            let plan = floors.plan(2);
            floors.claimed(&plan, [(plan.lanes[0], 1)].into_iter(), false, now);
        }
        assert_eq!(floors.plan(500).lanes.len(), 10);
    }

    /// Those that give nothing would stand in the way of those that do.
    #[test]
    fn where_there_are_more_than_fit_they_are_let_go_at_once() {
        let now = Instant::now();
        let mut floors = knowing(10, now);
        for _ in 0..8 {
            let plan = floors.plan(2);
            floors.claimed(&plan, std::iter::empty(), false, now);
        }
        assert_eq!(floors.plan(500).lanes.len(), 2);
    }

    /// Floors in which 100 is safe, and lane 7 was passed up to 90.
    fn risen() -> Floors {
        let mut floors = knowing(8, Instant::now());
        floors.base = 100;
        let plan = floors.plan(10);
        taken(&mut floors, &plan, 90);
        floors
    }

    fn floor_of_7(floors: &mut Floors) -> i64 {
        let plan = floors.plan(10);
        let at = plan.lanes.iter().position(|lane| *lane == 7);
        at.map_or(-1, |at| plan.floors[at])
    }

    /// Another claim may have looked while this was kept from it.
    #[test]
    fn what_was_left_is_not_passed_by_claims_that_are_under_way() {
        let mut floors = risen();
        let under_way = floors.plan(10);
        floors.lower(7, 40);
        taken(&mut floors, &under_way, 95);
        assert_eq!(floor_of_7(&mut floors), 39);
        let next = floors.plan(10);
        taken(&mut floors, &next, 95);
        assert_eq!(floor_of_7(&mut floors), 95);
        floors.lower(7, 99);
        assert_eq!(floor_of_7(&mut floors), 95, "it was above the floor");
    }

    #[test]
    fn what_a_claim_that_failed_had_taken_is_looked_for_again() {
        let mut floors = risen();
        let failing = floors.plan(10);
        let other = floors.plan(10);
        taken(&mut floors, &other, 97);
        assert_eq!(floor_of_7(&mut floors), 97);
        floors.failed(&failing, Instant::now());
        assert_eq!(floor_of_7(&mut floors), 90);
        assert_eq!(
            floors.wants_pass(Instant::now() + HURRY, LONG),
            [(7, 90)],
            "soon, in case that the server has not heard of it"
        );
    }

    /// A claim may come upon a lane that was let go, from its beginning.
    #[test]
    fn what_is_taken_below_a_floor_lowers_it() {
        let now = Instant::now();
        let mut floors = risen();
        let plan = floors.plan(10);
        floors.claimed(
            &Plan {
                turn: plan.turn,
                ..Plan::blank()
            },
            [(7, 30), (7, 31)].into_iter(),
            true,
            now,
        );
        assert_eq!(floor_of_7(&mut floors), 29);
        floors.idle.insert(99, 80);
        let plan = floors.plan(10);
        floors.claimed(&plan, [(99, 20), (99, 0)].into_iter(), true, now);
        assert_eq!(floors.lanes[&99].floor, 19);
        floors.idle.insert(98, 80);
        floors.claimed(&plan, [(98, 0)].into_iter(), true, now);
        assert_eq!(floors.lanes[&98].floor, 80, "it had no place");
    }

    #[test]
    fn plans_of_another_server_are_forgotten() {
        let now = Instant::now();
        let mut floors = risen();
        let (before, failing) = (floors.plan(10), floors.plan(10));
        floors.seen = 500;
        let asked = floors.asking(now);
        floors.sampled(asked, sample(300, 300, 0));
        floors.claimed(
            &Plan {
                era: floors.era,
                ..Plan::blank()
            },
            [(7, 1)].into_iter(),
            true,
            now,
        );
        taken(&mut floors, &before, 97);
        floors.failed(&failing, now);
        assert_eq!((floor_of_7(&mut floors), floors.pass), (0, None));
    }

    #[test]
    fn below_the_floors_it_is_looked_now_and_then() {
        let now = Instant::now();
        let mut none = knowing(8, now);
        assert_eq!(
            [none.wants_pass(now, LONG), none.wants_pass(now + LONG, LONG)],
            [vec![], vec![]]
        );
        none.base = 100;
        let plan = none.plan(10);
        taken(&mut none, &plan, 90);
        assert_eq!(
            none.wants_pass(now + 2 * LONG, LONG),
            [(7, 90)],
            "where there was no floor, nothing was begun"
        );
        let mut floors = risen();
        assert_eq!(floors.wants_pass(now, LONG), []);
        assert_eq!(floors.wants_pass(now + LONG / 2, LONG), []);
        assert_eq!(
            floors.wants_pass(now + LONG, LONG),
            [(7, 90)],
            "the others have no floor"
        );
        assert_eq!(floors.wants_pass(now + LONG, LONG), [], "one at a time");
        let end = now + LONG + SOON;
        floors.passed(now + LONG, end, LONG);
        assert_eq!(floors.wants_pass(end + LONG - SOON, LONG), []);
        assert_eq!(floors.wants_pass(end + LONG, LONG), [(7, 90)]);
        let end = end + 2 * LONG;
        floors.passed(end - LONG, end, LONG);
        assert_eq!(
            floors.wants_pass(end + 8 * LONG, LONG),
            [],
            "no more than a tenth of the time"
        );
        assert_eq!(floors.wants_pass(end + 9 * LONG, LONG), [(7, 90)]);
    }

    fn sample(s: i64, x: i64, keys: i64) -> Sample {
        Sample {
            s,
            x,
            oldest: x,
            keys,
            server: SystemTime::UNIX_EPOCH,
        }
    }

    /// Floors that are safe up to 100, with keys up to 80, and have seen 200.
    fn experienced(now: Instant) -> Floors {
        let mut floors = Floors::default();
        for (s, keys) in [(100, 0), (200, 80)] {
            let asked = floors.asking(now);
            floors.sampled(asked, sample(s, s, keys));
        }
        assert_eq!((floors.base, floors.keys), (100, 80));
        floors
    }

    /// Nothing new would be found above what was known. What such a sample says of keys was made of what was known, so it is not taken.
    #[test]
    fn numbers_that_went_back_are_believed() {
        let now = Instant::now();
        let mut floors = experienced(now);
        let asked = floors.asking(now);
        let late = floors.asking(now);
        floors.sampled(asked, sample(90, 300, 100));
        assert_eq!((floors.base, floors.keys, floors.plan(10).keys), (0, 0, 0));
        floors.sampled(late, sample(95, 301, 100));
        assert_eq!(floors.keys, 0, "asked for before everything was forgotten");
        let asked = floors.asking(now);
        assert_eq!((asked.safe, asked.keys), (0, 0));
    }

    #[test]
    fn another_server_is_not_believed_to_be_the_same() {
        let now = Instant::now();
        let mut floors = experienced(now);
        let asked = floors.asking(now);
        let other = Sample {
            server: SystemTime::now(),
            ..sample(500, 500, 100)
        };
        floors.sampled(asked, other);
        assert_eq!((floors.base, floors.keys), (0, 0));
    }

    /// The claim says which server its floors belong to, and that server ignores them if it is another one.
    #[test]
    fn plan_names_the_server_of_its_floors() {
        let mut floors = Floors::default();
        assert_eq!(floors.plan(10).server, None);
        let mut floors = experienced(Instant::now());
        let server = Some(SystemTime::UNIX_EPOCH);
        assert_eq!([floors.plan(10).server, floors.everywhere().server], [server, server]);
    }

    #[test]
    fn lost_connections_forget_every_floor() {
        let (now, mut book) = (Instant::now(), FloorBook::default());
        let namespaces = vec!["a".to_owned()];
        *book.of(&namespaces) = experienced(now);
        let plan = book.of(&namespaces).plan(10);
        book.outlives(0);
        assert!(book.of(&namespaces).holds(plan.era));
        book.outlives(2);
        let floors = book.of(&namespaces);
        assert!(!floors.holds(plan.era), "plans that were made before do not hold");
        assert_eq!((floors.base, floors.keys, floors.plan(10).server), (0, 0, None));
        let plan = floors.plan(10);
        book.outlives(2);
        assert!(book.of(&namespaces).holds(plan.era));
    }

    /// Two are under way at a time.
    #[test]
    fn a_sample_that_comes_late_forgets_nothing() {
        let now = Instant::now();
        let mut floors = experienced(now);
        let (early, late) = (floors.asking(now), floors.asking(now));
        floors.sampled(late, sample(400, 400, 150));
        floors.sampled(early, sample(300, 300, 120));
        assert_eq!((floors.base, floors.keys), (200, 150));
    }

    #[test]
    fn the_floor_of_the_keys_is_found_anew_now_and_then() {
        let now = Instant::now();
        let mut floors = experienced(now);
        assert_eq!(floors.asking(now).keys, 80);
        let asked = floors.asking(now + ANEW);
        assert_eq!(asked.keys, 0);
        floors.sampled(asked, sample(300, 300, 30));
        assert_eq!(floors.keys, 30, "something came back");
    }

    #[test]
    fn who_finds_nothing_asks_now_and_then() {
        let (mut floors, now) = (Floors::default(), Instant::now());
        assert!(floors.wants_sample(now, SOON, LONG));
        floors.granted(0);
        assert!(!floors.wants_sample(now + LONG / 2, SOON, LONG) && floors.wants_sample(now + LONG, SOON, LONG));
    }
}
