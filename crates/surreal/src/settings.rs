//! What a deployment may choose, and what the database holds every producer to.

use posthouse_core::{Error, Limits, StoreSettings};
use std::time::Duration;
use surrealdb::types::{SurrealValue, Value};

use crate::{
    error::{from_surreal, internal},
    message::micros,
    records::{Run, Writes, name},
};

pub(crate) const BEGIN: &str = include_str!("../sql/begin.surql");
const SETTINGS: &str = "posthouse_settings";

/// What a deployment of the store may choose. The defaults are those of every store. What was written by
/// [`configure`](crate::SurrealDb::configure) stands before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How large a message may be.
    pub limits: Limits,
    /// How long a dedupe key stays taken after its message ended; for ever when absent. It is written with the message.
    pub dedupe_lifetime: Option<Duration>,
    /// The attempt budget of a message that brings none.
    pub max_attempts: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            dedupe_lifetime: Some(Duration::from_secs(7 * 24 * 3600)),
            max_attempts: 12,
        }
    }
}

/// As it is kept.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Kept {
    payload_bytes: i64,
    require_tenant: bool,
    max_attempts: i64,
    /// In microseconds.
    dedupe_for: Option<i64>,
}

/// What a message is written by: the time, and what stands in the database before what the program says.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub now: i64,
    pub limits: Limits,
    pub max_attempts: u32,
    /// In microseconds; for ever when absent.
    pub dedupe_for: Option<i64>,
}

impl Rules {
    pub async fn read(on: &dyn Run, options: &Options) -> Result<Self, Error> {
        let (now, kept) = look(on).await?;
        let settings = kept.unwrap_or_else(|| StoreSettings {
            limits: options.limits.clone(),
            max_attempts: options.max_attempts,
            dedupe_lifetime: options.dedupe_lifetime,
        });
        Ok(Self {
            now,
            limits: Limits {
                require_tenant: settings.limits.require_tenant || options.limits.require_tenant,
                ..settings.limits
            },
            max_attempts: settings.max_attempts,
            dedupe_for: settings.dedupe_lifetime.map(micros),
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

/// The time, and what was configured.
pub(crate) async fn look(on: &dyn Run) -> Result<(i64, Option<StoreSettings>), Error> {
    let mut answers = on.run(BEGIN, Vec::new()).await?.into_iter();
    let now = answers.next().unwrap_or_default();
    let now = i64::from_value(now).map_err(from_surreal)?;
    let kept = match answers.next() {
        Some(Value::Array(kept)) => kept.into_iter().next(),
        other => return Err(internal(format!("not the settings: {other:?}"))),
    };
    let Some(kept) = kept else { return Ok((now, None)) };
    let kept = Kept::from_value(kept).map_err(from_surreal)?;
    let settings = StoreSettings {
        limits: Limits {
            payload_bytes: usize::try_from(kept.payload_bytes).map_err(internal)?,
            require_tenant: kept.require_tenant,
        },
        max_attempts: u32::try_from(kept.max_attempts).map_err(internal)?,
        dedupe_lifetime: kept.dedupe_for.map(|for_| Duration::from_micros(for_.unsigned_abs())),
    };
    Ok((now, Some(settings)))
}

pub(crate) async fn configure(on: &dyn Run, settings: &StoreSettings) -> Result<(), Error> {
    let kept = Kept {
        payload_bytes: i64::try_from(settings.limits.payload_bytes).unwrap_or(i64::MAX),
        require_tenant: settings.limits.require_tenant,
        max_attempts: settings.max_attempts.into(),
        dedupe_for: settings.dedupe_lifetime.map(micros),
    };
    Writes::of(name!(SETTINGS, "only"), kept).write(on).await
}
