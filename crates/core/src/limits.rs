//! A limit on everything a producer can hand us.

use std::time::Duration;

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

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes: 256 << 10,
            require_tenant: false,
        }
    }
}
