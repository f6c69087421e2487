//! What the database holds every producer to, in whatever language.

use posthouse_core::{Error, Limits, StoreSettings};
use rusqlite::{Connection, params};
use std::time::Duration;

use crate::{
    Options,
    call::{Call, Here, Run, Value, at_once},
    clock::micros,
    error::{internal, plain},
};

const CONFIGURE: &str = include_str!("../sql/configure.sql");
const RULES: &str = include_str!("../sql/enqueue_rules.sql");

/// What a message is written by: the time, and what stands in the database before what the program says.
pub(crate) struct Rules {
    pub now: i64,
    pub limits: Limits,
    pub max_attempts: u32,
    /// In microseconds; for ever when absent.
    pub dedupe_for: Option<i64>,
}

impl Rules {
    pub async fn read<R: Run>(on: &mut R, options: &Options) -> Result<Self, Error> {
        let (now, stored) = look(on).await?;
        Ok(match stored {
            Some(stored) => Self {
                now,
                limits: Limits {
                    require_tenant: stored.limits.require_tenant || options.limits.require_tenant,
                    ..stored.limits
                },
                max_attempts: stored.max_attempts,
                dedupe_for: stored.dedupe_lifetime.map(micros),
            },
            None => Self {
                now,
                limits: options.limits.clone(),
                max_attempts: options.max_attempts,
                dedupe_for: options.dedupe_lifetime.map(micros),
            },
        })
    }
}

/// What the program can refuse before it looks: the database may allow larger payloads than the program does by itself.
pub(crate) fn before_any_look(options: &Options) -> Limits {
    Limits {
        payload_bytes: Limits::HARD_PAYLOAD_BYTES,
        ..options.limits
    }
}

pub(crate) fn stored(db: &Connection) -> Result<Option<StoreSettings>, Error> {
    at_once(look(&mut Here(db))).map(|(_, stored)| stored)
}

pub(crate) fn write(tx: &Connection, settings: &StoreSettings) -> Result<(), Error> {
    let values = params![
        i64::try_from(settings.limits.payload_bytes).unwrap_or(i64::MAX),
        settings.limits.require_tenant,
        settings.max_attempts,
        settings.dedupe_lifetime.map_or(-1, micros),
    ];
    tx.execute(CONFIGURE, values).map(drop).map_err(plain)
}

async fn look<R: Run>(on: &mut R) -> Result<(i64, Option<StoreSettings>), Error> {
    let row = on
        .run(&Call {
            sql: RULES,
            values: vec![],
        })
        .await?;
    match row.as_deref() {
        Some([Value::Integer(now), Value::Null, ..]) => Ok((*now, None)),
        Some(
            [
                Value::Integer(now),
                Value::Integer(payload_bytes),
                Value::Integer(require_tenant),
                Value::Integer(max_attempts),
                Value::Integer(dedupe_for),
            ],
        ) => {
            let stored = StoreSettings {
                limits: Limits {
                    payload_bytes: usize::try_from(*payload_bytes).map_err(internal)?,
                    require_tenant: *require_tenant != 0,
                },
                max_attempts: u32::try_from(*max_attempts).map_err(internal)?,
                dedupe_lifetime: u64::try_from(*dedupe_for).ok().map(Duration::from_micros),
            };
            Ok((*now, Some(stored)))
        }
        other => Err(internal(format!("not the settings: {other:?}"))),
    }
}
