//! Granting leases.

use posthouse_core::{Claim, Claimed, Error, LeaseToken};
use std::time::Instant;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    Postgres,
    enqueue::millis,
    error::from_driver,
    floors::{Plan, Sample},
    rows,
    store::Args,
};

impl Postgres {
    pub(crate) async fn grant(&self, claim: &Claim) -> Result<Vec<Claimed>, Error> {
        // One tenant's lanes are computed, not remembered.
        let remembers = claim.tenant.is_none();
        let plan = if remembers {
            self.plan(claim).await?
        } else {
            Plan::blank()
        };
        let token = LeaseToken(Uuid::new_v4());
        let rows = self.grant_once(claim, token, &plan).await?;
        if remembers {
            let unkeyed = rows.iter().filter(|r| r.unkeyed).count();
            // Full, weighed or picky: something that was free may have been left below the last one taken.
            let cut = rows.len() >= claim.batch as usize
                || claim.max_bytes.is_some()
                || !claim.not_topics.is_empty()
                || unkeyed > 0 && plan.lanes.len() > 1;
            let taken = rows.iter().filter(|r| r.unkeyed).map(|r| (r.lane, r.pos));
            self.floors
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .of(&claim.namespaces)
                .claimed(&plan, taken, cut);
        }
        Ok(rows.into_iter().map(|r| r.claimed).collect())
    }

    async fn plan(&self, claim: &Claim) -> Result<Plan, Error> {
        let now = Instant::now();
        let wants = self
            .floors
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .of(&claim.namespaces)
            .wants_sample(now, self.options.floor_every);
        let sample = if wants { Some(self.sample().await?) } else { None };
        let mut book = self.floors.lock().unwrap_or_else(|e| e.into_inner());
        let floors = book.of(&claim.namespaces);
        if let Some(sample) = sample {
            floors.sampled(sample, now);
        }
        Ok(floors.plan(claim.batch, now, self.options.full_pass_every))
    }

    async fn sample(&self) -> Result<Sample, Error> {
        let client = self.client().await?;
        let sql = format!("SELECT s, x, oldest FROM {}.sample_floor()", self.schema);
        let rows = client.query_typed(&sql, &[]).await.map_err(from_driver)?;
        let row = rows.first().ok_or_else(|| Error::Internal("no sample".into()))?;
        let get = |at: usize| row.try_get(at).map_err(from_driver);
        Ok(Sample {
            s: get(0)?,
            x: get(1)?,
            oldest: get(2)?,
        })
    }

    async fn grant_once(&self, claim: &Claim, token: LeaseToken, plan: &Plan) -> Result<Vec<rows::Granted>, Error> {
        let batch = i32::try_from(claim.batch).unwrap_or(i32::MAX);
        let max_bytes = claim.max_bytes.map(|b| i64::try_from(b).unwrap_or(i64::MAX));
        let namespaces = (!claim.namespaces.is_empty()).then_some(&claim.namespaces);
        let lease = millis(claim.lease);
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
        ];
        let sql = format!(
            "SELECT * FROM {}.grant_leases($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)",
            self.schema
        );
        let rows = self.query(&sql, args).await?;
        rows.iter().map(|row| rows::granted(row, token)).collect()
    }
}
