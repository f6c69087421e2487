//! Granting leases.

use posthouse_core::{Claim, Error, LeaseToken, Look};
use std::{
    sync::MutexGuard,
    time::{Duration, Instant},
};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    Postgres,
    enqueue::millis,
    error::from_driver,
    floors::{Asked, FloorBook, Plan, Sample},
    rows::{self, Remark},
    store::Args,
};

/// The most windows of lanes that one claim looks into before it looks everywhere.
const WINDOWS: u32 = 8;

/// The most looks of one claim. Each one after a look that was cut short goes further, because what was in the way is gone.
const LOOKS: u32 = 64;

/// How long a sample may take; and one that finds the floor of the keys anew, which walks over all that is not cleaned up.
const SAMPLE_WITHIN: Duration = Duration::from_millis(250);
const ANEW_WITHIN: Duration = Duration::from_secs(5);

/// The most looks of one claim that came upon new lanes, and found others there before it.
const OTHERS: u32 = 3;

/// What one look granted, and what it saw.
#[derive(Default)]
struct Grants {
    messages: Vec<rows::Granted>,
    /// It was cut short by messages that lapsed, were put out of the way, or were too large.
    truncated: bool,
    /// Where messages begin, lane by lane, that it kept from others and did not take.
    kept: Vec<(i64, i64)>,
    /// It came upon lanes that were not known: there may be more of them.
    more_lanes: bool,
    /// Nothing that was free is left.
    complete: bool,
    /// Whether there may be leases that have run out, if it looked.
    ran_out: Option<bool>,
    /// The floors were sampled on another server.
    other_server: bool,
}

impl Grants {
    /// It brought less than was asked for, and nothing cut it short: no lane that it looked into has more without a key.
    fn left_nothing(&self, claim: &Claim) -> bool {
        !self.truncated && self.messages.len() < claim.batch as usize
    }

    /// Nothing that was free is left. Known for lanes that were known, without keys: of a lane that is new there may be others behind it, and
    /// of keys those come that fit.
    fn is_all(&self, plan: &Plan, claim: &Claim) -> bool {
        let plain = |message: &rows::Granted| message.unkeyed && plan.lanes.contains(&message.lane);
        self.left_nothing(claim) && !self.more_lanes && self.messages.iter().all(plain)
    }
}

/// A claim that is under way. Should it fail, or nobody wait for it any more, what it had taken is free again, and may have been passed by others.
struct UnderWay<'a> {
    store: &'a Postgres,
    claim: &'a Claim,
    plan: Plan,
    ended: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let mut book = self.store.book();
            book.of(&self.claim.namespaces).failed(&self.plan, Instant::now());
        }
    }
}

impl Postgres {
    pub(crate) async fn grant(&self, claim: &Claim) -> Result<Look, Error> {
        let mut pass = claim.tenant.is_none().then(|| self.look_below(claim)).flatten();
        // An empty answer sends the relay to sleep, so it must not come from a part of the lanes, nor from before something that
        // was in the way.
        let mut met_others = 0;
        for look in 0..LOOKS {
            // One tenant's lanes are computed, not remembered.
            let (plan, partial) = if look >= WINDOWS || claim.tenant.is_some() {
                (self.book().of(&claim.namespaces).everywhere(), false)
            } else {
                self.plan(claim)
            };
            let Some(granted) = self.grant_by(claim, plan).await? else {
                // The floors were forgotten after this was planned.
                continue;
            };
            if !granted.messages.is_empty() {
                return Ok(Look {
                    ran_out: granted.ran_out,
                    complete: !partial && granted.complete,
                    granted: granted.messages.into_iter().map(|r| r.claimed).collect(),
                });
            }
            // New lanes, and somebody else was there: behind them there may be others.
            met_others += u32::from(granted.more_lanes);
            let again = partial || granted.truncated || granted.more_lanes && met_others <= OTHERS;
            if !again && !self.found_below(pass.take()).await {
                return Ok(Look {
                    ran_out: granted.ran_out,
                    ..Look::default()
                });
            }
        }
        Ok(Look::default())
    }

    /// One look, by a plan; `None` if the plan no longer holds.
    async fn grant_by(&self, claim: &Claim, plan: Plan) -> Result<Option<Grants>, Error> {
        let mut under_way = UnderWay {
            store: self,
            claim,
            plan,
            ended: false,
        };
        let plan = &under_way.plan;
        let granted = if claim.tenant.is_none() && self.wants_sample(claim) {
            // Beside it: for the claims to come. What was granted does not wait for it long.
            let asked = self.book().of(&claim.namespaces).asking(Instant::now());
            let anew = asked.keys == 0 && asked.safe > 0;
            let within = if anew {
                ANEW_WITHIN.min(claim.lease / 5)
            } else {
                SAMPLE_WITHIN
            };
            let sample = tokio::time::timeout(within, self.sample(claim, asked));
            let (granted, sample) = tokio::join!(self.grant_once(claim, plan), sample);
            // Without one the next claims walk further, and that is all.
            if let Ok(Ok(Some(sample))) = sample {
                self.book().of(&claim.namespaces).sampled(asked, sample);
            }
            granted?
        } else {
            self.grant_once(claim, plan).await?
        };
        under_way.ended = true;
        let Some(mut granted) = granted else { return Ok(None) };
        granted.complete = granted.is_all(&under_way.plan, claim);
        if granted.other_server {
            self.book().forget();
        }
        self.remember(claim, &under_way.plan, &granted);
        Ok(Some(granted))
    }

    fn remember(&self, claim: &Claim, plan: &Plan, granted: &Grants) {
        let rows = &granted.messages;
        let mut book = self.book();
        if claim.tenant.is_none() {
            // Full, picky or cut short: something that was free may have been left below the last one taken.
            let picky = !(claim.not_topics.is_empty() && claim.not_tenants.is_empty());
            let cut = picky || !granted.left_nothing(claim);
            let taken = rows.iter().filter(|r| r.unkeyed).map(|r| (r.lane, r.pos));
            let floors = book.of(&claim.namespaces);
            floors.granted(rows.len());
            floors.claimed(plan, taken, cut, Instant::now());
        }
        // What it had locked and left may have been passed meanwhile by another claim of this handle.
        for (lane, pos) in &granted.kept {
            book.lower(*lane, *pos);
        }
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, FloorBook> {
        self.floors.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Where to look next, and whether that is only a part of the lanes with work.
    fn plan(&self, claim: &Claim) -> (Plan, bool) {
        let mut book = self.book();
        let floors = book.of(&claim.namespaces);
        let plan = floors.plan(claim.batch);
        let partial = floors.leaves_out(&plan);
        (plan, partial)
    }

    /// Whether it is time for a sample. Who asks takes it.
    fn wants_sample(&self, claim: &Claim) -> bool {
        let mut book = self.book();
        let floors = book.of(&claim.namespaces);
        floors.wants_sample(Instant::now(), self.options.floor_every, self.options.full_pass_every)
    }

    /// Whether floors of this era may be used on a connection that was lent just now: no connection was lost since then. Asked before anything is sent,
    /// because a pool replaces a closed connection without an error.
    fn holds(&self, claim: &Claim, era: u64) -> bool {
        let mut book = self.book();
        book.outlives(self.lender.lost());
        book.of(&claim.namespaces).holds(era)
    }

    async fn sample(&self, claim: &Claim, asked: Asked) -> Result<Option<Sample>, Error> {
        let sql = format!(
            "SELECT s, x, oldest, keys, server FROM {}.sample_floor($1, $2)",
            self.schema
        );
        let args: Args<'_> = &[(&asked.safe, Type::INT8), (&asked.keys, Type::INT8)];
        let Some(rows) = self.query_if(&sql, args, || self.holds(claim, asked.era)).await? else {
            return Ok(None);
        };
        let row = rows.first().ok_or_else(|| Error::Internal("no sample".into()))?;
        let get = |at: usize| row.try_get(at).map_err(from_driver);
        Ok(Some(Sample {
            s: get(0)?,
            x: get(1)?,
            oldest: get(2)?,
            keys: get(3)?,
            server: row.try_get(4).map_err(from_driver)?,
        }))
    }

    async fn grant_once(&self, claim: &Claim, plan: &Plan) -> Result<Option<Grants>, Error> {
        let token = LeaseToken(Uuid::new_v4());
        let batch = i32::try_from(claim.batch).unwrap_or(i32::MAX);
        let max_bytes = claim.max_bytes.map(|b| i64::try_from(b).unwrap_or(i64::MAX));
        let namespaces = (!claim.namespaces.is_empty()).then_some(&claim.namespaces);
        let lease = millis(claim.lease);
        let lot = (!claim.apart).then(|| i32::try_from(self.options.lot).unwrap_or(i32::MAX));
        let bell = self.bell.is_marked(&claim.worker).then(|| self.bell.id());
        let args: Args<'_> = &[
            (&batch, Type::INT4),
            (&claim.worker, Type::TEXT),
            (&token.0, Type::UUID),
            (&lease, Type::INT8),
            (&max_bytes, Type::INT8),
            (&namespaces, Type::TEXT_ARRAY),
            (&claim.tenant, Type::TEXT),
            (&claim.not_topics, Type::TEXT_ARRAY),
            (&plan.lanes, Type::INT8_ARRAY),
            (&plan.floors, Type::INT8_ARRAY),
            (&plan.lo, Type::INT8),
            (&plan.hi, Type::INT8),
            (&claim.not_tenants, Type::TEXT_ARRAY),
            (&bell, Type::UUID),
            (&lot, Type::INT4),
            (&plan.keys, Type::INT8),
            (&plan.server, Type::TIMESTAMPTZ),
        ];
        let sql = format!(
            "SELECT * FROM {}.grant_leases($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17)",
            self.schema
        );
        let Some(rows) = self.query_if(&sql, args, || self.holds(claim, plan.era)).await? else {
            return Ok(None);
        };
        let mut grants = Grants::default();
        for row in &rows {
            match rows::granted(row, token)? {
                Some(message) => grants.messages.push(message),
                None => match rows::remark(row)? {
                    Remark::CutShort => grants.truncated = true,
                    Remark::Kept { lane, pos } => grants.kept.push((lane, pos)),
                    Remark::MoreLanes => grants.more_lanes = true,
                    Remark::RanOut(said) => grants.ran_out = Some(said),
                    Remark::OtherServer => grants.other_server = true,
                },
            }
        }
        if claim.wakes(grants.messages.len()) {
            self.bell.unmark(&claim.worker);
        }
        Ok(Some(grants))
    }
}
