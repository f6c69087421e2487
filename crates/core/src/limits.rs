//! A limit on everything a producer can hand us.

use std::time::Duration;

use crate::Invalid;

/// How large a message may be. The hard limits are constants; a deployment may lower the payload's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest payload in bytes: 256 KiB unless configured, never above [`Limits::HARD_PAYLOAD_BYTES`].
    pub payload_bytes: usize,
    /// Refuse a message without a tenant.
    pub require_tenant: bool,
}

impl Limits {
    /// The payload limit that no configuration raises: 16 MiB. Larger objects belong in a store of their own.
    pub const HARD_PAYLOAD_BYTES: usize = 16 << 20;
    /// Names and keys.
    pub const NAME_BYTES: usize = 255;
    /// A topic that names its destination (`http:`, `bus:`, `fn:`, `custom:`).
    pub const DESTINATION_BYTES: usize = 2048;
    /// Headers in one message.
    pub const HEADERS: usize = 64;
    /// One header value.
    pub const HEADER_BYTES: usize = 4096;
    /// The farthest delay and the farthest deliver-by.
    pub const FARTHEST: Duration = Duration::from_secs(3660 * 24 * 3600);
    /// The largest attempt budget.
    pub const ATTEMPTS: u32 = 1000;
    /// The most messages one claim may take.
    pub const BATCH: u32 = 10_000;
    /// The longest lease.
    pub const LEASE: Duration = Duration::from_secs(24 * 3600);
    /// After this many releases in a row, a release counts as an attempt.
    pub const FREE_RELEASES: u32 = 100;
}

/// What a store holds every producer to, in whatever language: kept in the store itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// How large a message may be, and whether it needs a tenant.
    pub limits: Limits,
    /// The attempt budget of a message that brings none.
    pub max_attempts: u32,
    /// How long a dedupe key stays taken after its message ended; for ever when absent.
    pub dedupe_lifetime: Option<Duration>,
}

impl StoreSettings {
    /// Refuses what no store can keep.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.limits.payload_bytes > Limits::HARD_PAYLOAD_BYTES {
            let most = Limits::HARD_PAYLOAD_BYTES;
            return Err(Invalid::new("payload_bytes", format!("must be at most {most}")));
        }
        if self.max_attempts == 0 || self.max_attempts > Limits::ATTEMPTS {
            let most = Limits::ATTEMPTS;
            return Err(Invalid::new("max_attempts", format!("must be between 1 and {most}")));
        }
        if self.dedupe_lifetime.is_some_and(|lifetime| lifetime > Limits::FARTHEST) {
            return Err(Invalid::new(
                "dedupe_lifetime",
                "must be at most ten years; or leave it out, for ever",
            ));
        }
        Ok(())
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_attempts: 12,
            dedupe_lifetime: Some(Duration::from_secs(7 * 24 * 3600)),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes: 256 << 10,
            require_tenant: false,
        }
    }
}
