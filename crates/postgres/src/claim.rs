//! Granting leases.

use posthouse_core::{Claim, Error, LeaseToken, Look};
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use crate::{
    Postgres,
    enqueue::millis,
    error::from_driver,
    floors::{Asked, FloorBook, Plan, Sample},
    lent::Lender,
    rows::{self, Remark},
    store::{Args, by_itself},
};

/// The most windows of lanes that one claim looks into before it looks everywhere.
const WINDOWS: u32 = 8;

/// The most looks of one claim. Each one after a look that was cut short goes further, because what was in the way is gone.
const LOOKS: u32 = 64;

/// How long a sample may take; and one that finds the floor of the keys anew, which walks over all that is not cleaned up.
const SAMPLE_WITHIN: Duration = Duration::from_millis(250);
const ANEW_WITHIN: Duration = Duration::from_secs(5);

/// How many lanes are looked into at once for what is below their floors.
const LANES_AT_ONCE: usize = 1000;

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
    /// Whether there may be leases that have run out, if it looked.
    ran_out: Option<bool>,
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

fn lock(book: &Mutex<FloorBook>) -> MutexGuard<'_, FloorBook> {
    book.lock().unwrap_or_else(|e| e.into_inner())
}

/// What is in these lanes at these floors or below them: the first place of each.
async fn below(lender: &Lender, sql: &str, floors: &[(i64, i64)]) -> Result<Vec<(i64, i64)>, Error> {
    let (lanes, floors): (Vec<i64>, Vec<i64>) = floors.iter().copied().unzip();
    let mut lent = lender.lend().await?;
    let answer = by_itself(
        lent.client(),
        sql,
        &[(&lanes, Type::INT8_ARRAY), (&floors, Type::INT8_ARRAY)],
    )
    .await;
    lent.answered();
    let place = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
    answer?.iter().map(place).collect::<Result<_, _>>().map_err(from_driver)
}

impl Postgres {
    pub(crate) async fn grant(&self, claim: &Claim) -> Result<Look, Error> {
        // An empty answer sends the relay to sleep, so it must not come from a part of the lanes, nor from before something that
        // was in the way.
        for look in 0..LOOKS {
            // One tenant's lanes are computed, not remembered.
            let (plan, partial) = if look >= WINDOWS || claim.tenant.is_some() {
                (self.book().of(&claim.namespaces).everywhere(), false)
            } else {
                self.look_below(claim).await;
                self.plan(claim)
            };
            let granted = if claim.tenant.is_none() && self.wants_sample(claim) {
                // Beside it: for the claims to come. What was granted does not wait for it long.
                let asked = self.book().of(&claim.namespaces).asking(Instant::now());
                let anew = asked.keys == 0 && asked.safe > 0;
                let within = if anew {
                    ANEW_WITHIN.min(claim.lease / 5)
                } else {
                    SAMPLE_WITHIN
                };
                let sample = tokio::time::timeout(within, self.sample(asked));
                let (granted, sample) = tokio::join!(self.grant_once(claim, &plan), sample);
                // Without one the next claims walk further, and that is all.
                if let Ok(Ok(sample)) = sample {
                    self.book().of(&claim.namespaces).sampled(asked, sample);
                }
                granted
            } else {
                self.grant_once(claim, &plan).await
            };
            let granted = granted.inspect_err(|_| self.book().of(&claim.namespaces).failed(&plan))?;
            if claim.tenant.is_none() {
                self.remember(claim, &plan, &granted);
            }
            if !granted.messages.is_empty() || !(partial || granted.truncated) {
                return Ok(Look {
                    ran_out: granted.ran_out,
                    complete: !partial && granted.is_all(&plan, claim),
                    granted: granted.messages.into_iter().map(|r| r.claimed).collect(),
                });
            }
        }
        Ok(Look::default())
    }

    fn remember(&self, claim: &Claim, plan: &Plan, granted: &Grants) {
        let rows = &granted.messages;
        // Full, picky or cut short: something that was free may have been left below the last one taken.
        let picky = !(claim.not_topics.is_empty() && claim.not_tenants.is_empty());
        let cut = picky || !granted.left_nothing(claim);
        let taken = rows.iter().filter(|r| r.unkeyed).map(|r| (r.lane, r.pos));
        let mut book = self.book();
        let floors = book.of(&claim.namespaces);
        floors.granted(rows.len());
        floors.claimed(plan, taken, cut, Instant::now());
        // What it had locked and left may have been passed meanwhile by another claim of this handle.
        for (lane, pos) in &granted.kept {
            floors.lower(*lane, *pos);
        }
    }

    fn book(&self) -> MutexGuard<'_, FloorBook> {
        lock(&self.floors)
    }

    /// Where to look next, and whether that is only a part of the lanes with work.
    fn plan(&self, claim: &Claim) -> (Plan, bool) {
        let mut book = self.book();
        let floors = book.of(&claim.namespaces);
        let plan = floors.plan(claim.batch);
        let partial = floors.leaves_out(&plan);
        (plan, partial)
    }

    /// Now and then looks for what a failed claim left below the floors: beside the claims, because it walks over all that is not cleaned up. Only who
    /// had nothing to do of late waits for it, a little.
    async fn look_below(&self, claim: &Claim) {
        let every = self.options.full_pass_every;
        let (floors, quiet) = {
            let mut book = self.book();
            let floors = book.of(&claim.namespaces);
            (floors.wants_pass(Instant::now(), every), floors.is_quiet())
        };
        if floors.is_empty() {
            return;
        }
        let (lender, book, namespaces) = (self.lender.clone(), Arc::clone(&self.floors), claim.namespaces.clone());
        let sql = format!("SELECT lane, pos FROM {}.below_floors($1, $2)", self.schema);
        let pass = tokio::spawn(async move {
            let began = Instant::now();
            for part in floors.chunks(LANES_AT_ONCE) {
                // What is not found now is found the next time.
                let Ok(found) = below(&lender, &sql, part).await else {
                    break;
                };
                let mut book = lock(&book);
                let floors = book.of(&namespaces);
                found.into_iter().for_each(|(lane, pos)| floors.lower(lane, pos));
            }
            lock(&book).of(&namespaces).passed(began, Instant::now(), every);
        });
        if quiet {
            tokio::time::timeout(SAMPLE_WITHIN, pass).await.ok();
        }
    }

    /// Whether it is time for a sample. Who asks takes it.
    fn wants_sample(&self, claim: &Claim) -> bool {
        let mut book = self.book();
        let floors = book.of(&claim.namespaces);
        floors.wants_sample(Instant::now(), self.options.floor_every, self.options.full_pass_every)
    }

    async fn sample(&self, asked: Asked) -> Result<Sample, Error> {
        let sql = format!(
            "SELECT s, x, oldest, keys, server FROM {}.sample_floor($1, $2)",
            self.schema
        );
        let args: Args<'_> = &[(&asked.safe, Type::INT8), (&asked.keys, Type::INT8)];
        let rows = self.query(&sql, args).await?;
        let row = rows.first().ok_or_else(|| Error::Internal("no sample".into()))?;
        let get = |at: usize| row.try_get(at).map_err(from_driver);
        Ok(Sample {
            s: get(0)?,
            x: get(1)?,
            oldest: get(2)?,
            keys: get(3)?,
            server: row.try_get(4).map_err(from_driver)?,
        })
    }

    async fn grant_once(&self, claim: &Claim, plan: &Plan) -> Result<Grants, Error> {
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
        ];
        let sql = format!(
            "SELECT * FROM {}.grant_leases($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16)",
            self.schema
        );
        let rows = self.query(&sql, args).await?;
        let mut grants = Grants::default();
        for row in &rows {
            match rows::granted(row, token)? {
                Some(message) => grants.messages.push(message),
                None => match rows::remark(row)? {
                    Remark::CutShort => grants.truncated = true,
                    Remark::Kept { lane, pos } => grants.kept.push((lane, pos)),
                    Remark::MoreLanes => grants.more_lanes = true,
                    Remark::RanOut(said) => grants.ran_out = Some(said),
                },
            }
        }
        if claim.wakes(grants.messages.len()) {
            self.bell.unmark(&claim.worker);
        }
        Ok(grants)
    }
}
