//! How far the lines were searched in vain, in a store where places may be taken up late.
//!
//! When a destination is paused, its messages stay at the front of their line, and every claim would read over all of them again. So a handle remembers, for the topics
//! that are left and for each lane, up to which place there is nothing else: its floor. Places rise, so that stays true but for two: a transaction may be committed long after its numbers
//! were drawn, and the nodes of a database hand out numbers in blocks. So a floor is what was passed a while ago, and what is below it is looked through all the same, a
//! stretch with each claim and more where there is nothing else to do. What comes there waits for that, and no longer.
//!
//! Heads of order keys have no floor: a key that becomes free has its hint at its old place again.

use std::collections::BTreeMap;

/// A namespace and a tenant: they have a line of their own.
type Lane = (String, String);

/// How many of a topic that is left make a floor worth it.
const WORTH: usize = 100;
/// How long ago something was passed for the floor to be there, in microseconds: most transactions that were open then are over.
const SETTLED: i64 = 10_000_000;
/// For how many sets of topics that are left it is known: one destination may be paused, and others be full now and then.
const SETS: usize = 16;
/// For how many lines of each: the others are read over.
const LANES: usize = 10_000;

/// What a handle knows of its lines.
#[derive(Debug, Default)]
pub struct Floors {
    /// For the topics that were left, sorted; those of the last claim come last.
    sets: Vec<(Vec<String>, BTreeMap<Lane, Floor>)>,
}

/// What is known where some topics are left.
#[derive(Clone, Copy, Debug)]
pub struct Known<'f> {
    lanes: Option<&'f BTreeMap<Lane, Floor>>,
}

impl Known<'_> {
    /// A walk through the line of a lane.
    pub fn walk(&self, lane: &Lane) -> Walk {
        Walk::from(self.lanes.and_then(|lanes| lanes.get(lane)))
    }
}

/// What is known of one line.
#[derive(Clone, Copy, Debug)]
struct Floor {
    /// Up to here there was nothing but what is left.
    at: i64,
    /// Up to here there was nothing else at that time.
    passed: i64,
    since: i64,
    /// What is below the floor was looked through up to here.
    swept: i64,
    /// How far these looks go before they begin again: the floor as it was when they began. It rises, and they would never come round.
    until: i64,
}

impl Floors {
    /// What is known for a claim that leaves these topics.
    pub fn known(&self, left: &[String]) -> Known<'_> {
        let left = sorted(left);
        let known = self.sets.iter().find(|(topics, _)| *topics == left);
        Known {
            lanes: known.map(|(_, lanes)| lanes),
        }
    }

    /// What walks have seen at this time. They were committed: what they took is gone.
    pub fn learn(&mut self, left: &[String], now: i64, walks: impl IntoIterator<Item = (Lane, Walk)>) {
        let left = sorted(left);
        let known = self.sets.iter().position(|(topics, _)| *topics == left);
        let mut lanes = known.map(|at| self.sets.remove(at).1).unwrap_or_default();
        for (lane, walk) in walks {
            let room = lanes.len() < LANES;
            match lanes.get_mut(&lane) {
                Some(floor) => floor.learn(now, &walk),
                None if walk.left >= WORTH && room => drop(lanes.insert(lane, Floor::of(now, &walk))),
                None => {}
            }
        }
        if lanes.is_empty() {
            return;
        }
        if self.sets.len() >= SETS {
            self.sets.remove(0);
        }
        self.sets.push((left, lanes));
    }
}

fn sorted(left: &[String]) -> Vec<String> {
    let mut left = left.to_vec();
    left.sort_unstable();
    left.dedup();
    left
}

impl Floor {
    const fn of(now: i64, walk: &Walk) -> Self {
        Self {
            at: i64::MIN,
            passed: walk.passed,
            since: now,
            swept: i64::MIN,
            until: i64::MIN,
        }
    }

    fn learn(&mut self, now: i64, walk: &Walk) {
        (self.swept, self.until) = walk.goes_on_from();
        if walk.stopped {
            self.passed = self.passed.min(walk.passed);
        }
        if now < self.since {
            self.since = now;
        } else if now - self.since >= SETTLED && walk.passed >= self.passed {
            // Passed twice. A walk that had enough before it came so far says nothing.
            self.at = self.at.max(self.passed);
            (self.passed, self.since) = (walk.passed, now);
        }
    }
}

/// One claim's way through a line: what is below the floor in stretches, and everything above.
#[derive(Debug)]
pub struct Walk {
    floor: i64,
    /// Up to here everything is left or taken.
    passed: i64,
    /// How many were left.
    left: usize,
    /// Whether something free was not taken.
    stopped: bool,
    /// Where the looks below the floor are, and how far they go.
    swept: i64,
    until: i64,
    /// They have begun at the first place of the line, within this walk.
    afresh: bool,
    /// They have come from there to the floor.
    round: bool,
    /// The first below the floor that is free and was not taken.
    stays: Option<i64>,
}

impl Walk {
    fn from(floor: Option<&Floor>) -> Self {
        let at = floor.map_or(i64::MIN, |floor| floor.at);
        let (swept, until) = match floor {
            Some(floor) if floor.swept > i64::MIN => (floor.swept, floor.until),
            _ => (i64::MIN, at),
        };
        Self {
            floor: at,
            passed: at,
            left: 0,
            stopped: false,
            swept,
            until,
            afresh: swept == i64::MIN,
            round: at == i64::MIN,
            stays: None,
        }
    }

    /// Reading begins behind this place.
    pub const fn floor(&self) -> i64 {
        self.floor
    }

    /// Behind which place, and up to which, the next stretch below the floor is; none if all of it was looked through.
    pub fn below(&self) -> Option<(i64, i64)> {
        (!self.round).then_some((self.swept, self.until))
    }

    /// The stretch was read up to this place; or to its end.
    pub const fn swept(&mut self, up_to: Option<i64>) {
        match up_to {
            Some(pos) => self.swept = pos,
            None => {
                (self.round, self.afresh) = (self.afresh, true);
                (self.swept, self.until) = (i64::MIN, self.floor);
            }
        }
    }

    /// Whether this place is below the floor: another handle, whose looks are elsewhere, does not see what is there.
    pub const fn is_below(&self, pos: i64) -> bool {
        pos <= self.floor
    }

    /// One of a topic that is left.
    pub fn leaves(&mut self, pos: i64) {
        self.left += usize::from(!self.is_below(pos));
        self.takes(pos);
    }

    /// One that is taken, or over.
    pub fn takes(&mut self, pos: i64) {
        if !self.is_below(pos) && !self.stopped {
            self.passed = pos;
        }
    }

    /// One that is free, and stays where it is.
    pub fn passes(&mut self, pos: i64) {
        if self.is_below(pos) {
            self.stays.get_or_insert(pos);
        } else {
            self.stopped = true;
            self.passed = self.passed.min(pos - 1);
        }
    }

    /// Whether all of the line was in sight.
    pub const fn saw_all(&self) -> bool {
        self.round
    }

    /// Where the next looks below the floor begin, with what this claim has found and left, and how far they go.
    const fn goes_on_from(&self) -> (i64, i64) {
        match self.stays {
            Some(pos) => (pos - 1, self.until),
            None => (self.swept, self.until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn topics(left: &[&str]) -> Vec<String> {
        left.iter().map(|&topic| topic.to_owned()).collect()
    }

    fn lane() -> Lane {
        ("default".to_owned(), "default".to_owned())
    }

    /// Walks over these, which are left, and takes the last.
    fn walk(floors: &mut Floors, now: i64, left: &[String], places: std::ops::RangeInclusive<i64>) {
        let mut walk = floors.known(left).walk(&lane());
        let (last, floor) = (*places.end(), walk.floor());
        for pos in places.filter(|pos| *pos > floor) {
            if pos == last { walk.takes(pos) } else { walk.leaves(pos) }
        }
        floors.learn(left, now, [(lane(), walk)]);
    }

    fn floor(floors: &Floors, left: &[String]) -> i64 {
        floors.known(left).walk(&lane()).floor()
    }

    #[test]
    fn a_floor_is_what_was_passed_a_while_ago() {
        let (mut floors, left) = (Floors::default(), topics(&["paused"]));
        walk(&mut floors, 0, &left, 1..=500);
        assert_eq!(floor(&floors, &left), i64::MIN);
        walk(&mut floors, 9 * SECOND, &left, 1..=600);
        assert_eq!(
            floor(&floors, &left),
            i64::MIN,
            "somebody may have the place 400 and not be committed"
        );
        walk(&mut floors, 10 * SECOND, &left, 1..=700);
        assert_eq!(floor(&floors, &left), 500);
        walk(&mut floors, 20 * SECOND, &left, 1..=800);
        assert_eq!(floor(&floors, &left), 700);
    }

    #[test]
    fn few_are_read_over_each_time() {
        let (mut floors, left) = (Floors::default(), topics(&["paused"]));
        for n in 0..9 {
            walk(&mut floors, n * 10 * SECOND, &left, 1..=WORTH as i64);
        }
        assert_eq!(floor(&floors, &left), i64::MIN);
    }

    #[test]
    fn what_a_claim_did_not_take_stays_above_the_floor() {
        let (mut floors, left) = (Floors::default(), topics(&["paused"]));
        walk(&mut floors, 0, &left, 1..=500);
        // One is free at 300, and too large.
        let mut late = floors.known(&left).walk(&lane());
        (1..300).for_each(|pos| late.leaves(pos));
        late.takes(300);
        late.passes(300);
        (301..900).for_each(|pos| late.leaves(pos));
        floors.learn(&left, 10 * SECOND, [(lane(), late)]);
        assert_eq!(floor(&floors, &left), 299);
        walk(&mut floors, 20 * SECOND, &left, 1..=500);
        assert_eq!(floor(&floors, &left), 299);
    }

    #[test]
    fn other_topics_have_other_floors() {
        let (mut floors, left) = (Floors::default(), topics(&["paused", "full"]));
        for now in [0, 10 * SECOND] {
            walk(&mut floors, now, &left, 1..=500);
        }
        assert_eq!(floor(&floors, &topics(&["full", "paused", "full"])), 500);
        assert_eq!(floor(&floors, &topics(&["paused"])), i64::MIN);
        for n in 0..SETS {
            walk(&mut floors, 0, &topics(&[&format!("topic {n}")]), 1..=500);
        }
        assert_eq!(floor(&floors, &left), i64::MIN, "so many are known, and no more");
        assert_eq!(floors.sets.len(), SETS);
    }

    #[test]
    fn a_claim_that_has_enough_early_says_nothing() {
        let (mut floors, left) = (Floors::default(), topics(&["paused"]));
        walk(&mut floors, 0, &left, 1..=500);
        walk(&mut floors, 10 * SECOND, &left, 1..=3);
        assert_eq!(floor(&floors, &left), i64::MIN);
        walk(&mut floors, 11 * SECOND, &left, 1..=600);
        assert_eq!(floor(&floors, &left), 500);
    }

    #[test]
    fn a_clock_that_is_set_back_stops_nothing() {
        let (mut floors, left) = (Floors::default(), topics(&["paused"]));
        for now in [1000 * SECOND, 0, 10 * SECOND] {
            walk(&mut floors, now, &left, 1..=500);
        }
        assert_eq!(floor(&floors, &left), 500);
    }

    /// What is below the floor is looked through, in stretches, from where the last claim stopped, and once in a claim.
    #[test]
    fn what_is_below_comes_round() {
        let (mut floors, left) = (Floors::default(), topics(&["paused"]));
        for now in [0, 10 * SECOND] {
            walk(&mut floors, now, &left, 1..=500);
        }
        let mut first = floors.known(&left).walk(&lane());
        assert_eq!(first.below(), Some((i64::MIN, 500)));
        first.swept(Some(200));
        assert_eq!(first.below(), Some((200, 500)));
        assert!(!first.saw_all());
        floors.learn(&left, 10 * SECOND, [(lane(), first)]);

        let mut second = floors.known(&left).walk(&lane());
        assert_eq!(second.below(), Some((200, 500)));
        second.swept(None);
        assert_eq!(second.below(), Some((i64::MIN, 500)), "from the beginning");
        second.swept(Some(100));
        assert_eq!(second.below(), Some((100, 500)));
        second.swept(None);
        assert!(second.below().is_none() && second.saw_all());
        floors.learn(&left, 10 * SECOND, [(lane(), second)]);
        assert_eq!(floors.known(&left).walk(&lane()).below(), Some((i64::MIN, 500)));
    }

    /// However fast more comes that is left.
    #[test]
    fn looks_below_a_floor_that_rises_begin_again() {
        let (mut floors, left, mut began) = (Floors::default(), topics(&["paused"]), 0);
        for n in 1..=100 {
            let mut rising = floors.known(&left).walk(&lane());
            if let Some((after, until)) = rising.below() {
                began += u32::from(after == i64::MIN);
                let last = after.max(0) + 100;
                rising.swept((last <= until).then_some(last));
            }
            (rising.floor().max(0) + 1..=n * 500).for_each(|pos| rising.leaves(pos));
            floors.learn(&left, n * 10 * SECOND, [(lane(), rising)]);
        }
        assert!(floor(&floors, &left) > 40_000);
        assert!(began >= 3, "{began}");
    }

    #[test]
    fn what_was_found_below_and_not_taken_is_found_again() {
        let (mut floors, left) = (Floors::default(), topics(&["paused"]));
        for now in [0, 10 * SECOND] {
            walk(&mut floors, now, &left, 1..=500);
        }
        let mut found = floors.known(&left).walk(&lane());
        found.swept(Some(200));
        found.takes(20);
        found.passes(40);
        found.passes(60);
        floors.learn(&left, 10 * SECOND, [(lane(), found)]);
        assert_eq!(floors.known(&left).walk(&lane()).below(), Some((39, 500)));
        assert_eq!(floor(&floors, &left), 500);
    }
}
