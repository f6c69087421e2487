//! Signatures of webhooks, as [Standard Webhooks](https://www.standardwebhooks.com) has them: HMAC-SHA256 over
//! `id.timestamp.body`, in the header `webhook-signature`.
//!
//! A sender calls [`sign`]; a receiver has a [`Verifier`].
//!
//! ```
//! use posthouse_transports::webhook::{Refused, Secret, Verifier, sign};
//! use std::time::{Duration, SystemTime, UNIX_EPOCH};
//!
//! # fn main() -> Result<(), posthouse_core::Invalid> {
//! let secret = Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")?;
//! let signature = sign([&secret], "msg_1", 1_700_000_000, b"{}");
//!
//! let headers = [("webhook-id", "msg_1"), ("webhook-timestamp", "1700000000"), ("webhook-signature", &signature)];
//! let header = |name: &str| headers.iter().find(|h| h.0 == name).map(|h| h.1);
//! let verifier = Verifier::new(secret);
//! let now = UNIX_EPOCH + Duration::from_secs(1_700_000_007);
//! assert_eq!(verifier.verify(header, b"{}", now).unwrap().id, "msg_1");
//! assert_eq!(verifier.verify(header, b"{ }", now), Err(Refused::Signature));
//! assert_eq!(verifier.verify(header, b"{}", SystemTime::now()), Err(Refused::TooOld));
//! # Ok(()) }
//! ```

use base64::{
    Engine,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use hmac::{Hmac, KeyInit, Mac};
use posthouse_core::Invalid;
use sha2::Sha256;
use std::{
    fmt,
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use zeroize::Zeroizing;

/// The header with the message's id.
pub const ID: &str = "webhook-id";
/// The header with the time of sending, in seconds since 1970.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// The header with the signatures, separated by spaces.
pub const SIGNATURE: &str = "webhook-signature";

/// How far a timestamp may be from the receiver's clock, either way, unless told otherwise.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// More signatures than this are not looked at: nobody rotates that many secrets at once.
const MOST_SIGNATURES: usize = 16;

/// What the standard asks of a secret, in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Padded or not when read, since both are about; padded when written.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A secret that sender and receiver share. Written `whsec_` and base64, or base64 alone; 24 to 64 bytes.
///
/// It is never shown, and its memory is wiped when the last copy is gone.
#[derive(Clone)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

impl Secret {
    /// Reads `whsec_<base64>` or `<base64>`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let text = text.trim();
        let encoded = text.strip_prefix("whsec_").unwrap_or(text);
        // The decoder's own error would quote a character of the secret.
        let bytes = BASE64.decode(encoded).map_err(|_| {
            Invalid::new(
                "secret",
                "is not base64; write whsec_ and the base64 of 24 to 64 random bytes",
            )
        })?;
        Self::from_bytes(bytes)
    }

    /// The secret itself, 24 to 64 random bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Invalid> {
        let bytes = Zeroizing::new(bytes);
        if !SECRET_BYTES.contains(&bytes.len()) {
            let problem = format!(
                "has {} bytes, and must have 24 to 64; make one with: echo \"whsec_$(openssl rand -base64 32)\"",
                bytes.len()
            );
            return Err(Invalid::new("secret", problem));
        }
        Ok(Self(Arc::new(bytes)))
    }

    fn mac(&self, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac
    }

    /// As people write it, to be found in what must not show it.
    #[cfg(feature = "http")]
    pub(crate) fn written(&self) -> Zeroizing<String> {
        Zeroizing::new(BASE64.encode(&**self.0).trim_end_matches('=').to_owned())
    }
}

impl FromStr for Secret {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::parse(text)
    }
}

/// Never the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The value of `webhook-signature`: one signature for each secret, separated by spaces.
///
/// With two secrets a receiver that knows either is satisfied, which is how one is exchanged for another.
pub fn sign<'s>(secrets: impl IntoIterator<Item = &'s Secret>, id: &str, timestamp: u64, body: &[u8]) -> String {
    let timestamp = timestamp.to_string();
    let one = |secret: &Secret| {
        let signature = secret.mac(id, &timestamp, body).finalize().into_bytes();
        format!("v1,{}", BASE64.encode(signature))
    };
    secrets.into_iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Why a webhook is not to be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// This header is not there, or is not text.
    #[error("the header {0} is missing")]
    Missing(&'static str),
    /// The timestamp is not a number of seconds.
    #[error("webhook-timestamp is not a number of seconds")]
    Timestamp,
    /// It was sent too long ago: delayed, or played back by somebody.
    #[error("webhook-timestamp is too old")]
    TooOld,
    /// It will be sent in the future: one of the clocks is wrong.
    #[error("webhook-timestamp is in the future")]
    TooNew,
    /// No signature is by a secret that is known here.
    #[error("no signature in webhook-signature fits")]
    Signature,
}

/// A webhook that is genuine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Webhook<'h> {
    /// The message's id: the same over attempts and replays, so what was done under it need not be done again.
    pub id: &'h str,
    /// When it was sent, in seconds since 1970.
    pub timestamp: u64,
}

/// Checks webhooks for a receiver.
#[derive(Clone, Debug)]
pub struct Verifier {
    secrets: Vec<Secret>,
    tolerance: Duration,
}

impl Verifier {
    /// Trusts what is signed with this secret.
    pub fn new(secret: Secret) -> Self {
        Self {
            secrets: vec![secret],
            tolerance: TOLERANCE,
        }
    }

    /// Trusts what is signed with this one, too: the new one, or the old one, while secrets are exchanged.
    pub fn also(mut self, secret: Secret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// How far a timestamp may be from `now`, either way; 5 minutes otherwise.
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Checks one webhook. `header` looks a header up by its name, in lower case; `body` is as it came, before any parsing.
    ///
    /// How long it takes says nothing of how much of a signature was right.
    pub fn verify<'h>(
        &self,
        header: impl Fn(&str) -> Option<&'h str>,
        body: &[u8],
        now: SystemTime,
    ) -> Result<Webhook<'h>, Refused> {
        let given = |name: &'static str| header(name).filter(|v| !v.is_empty()).ok_or(Refused::Missing(name));
        let (id, stamp, signatures) = (given(ID)?, given(TIMESTAMP)?, given(SIGNATURE)?);
        let timestamp = self.timely(stamp, now)?;
        let genuine = signatures
            .split(' ')
            .filter_map(|signature| signature.strip_prefix("v1,"))
            .take(MOST_SIGNATURES)
            .filter_map(|signature| BASE64.decode(signature).ok())
            // Every secret on every signature, whatever was found before.
            .fold(false, |genuine, signature| {
                genuine | self.fits(id, stamp, body, &signature)
            });
        if genuine {
            Ok(Webhook { id, timestamp })
        } else {
            Err(Refused::Signature)
        }
    }

    fn fits(&self, id: &str, stamp: &str, body: &[u8], signature: &[u8]) -> bool {
        let fits = |secret: &Secret| secret.mac(id, stamp, body).verify_slice(signature).is_ok();
        self.secrets.iter().fold(false, |any, secret| any | fits(secret))
    }

    fn timely(&self, stamp: &str, now: SystemTime) -> Result<u64, Refused> {
        // Digits alone: "+1", " 1" or "1e9" would be another text for the same time.
        let digits = stamp.bytes().all(|b| b.is_ascii_digit());
        let timestamp: u64 = stamp.parse().ok().filter(|_| digits).ok_or(Refused::Timestamp)?;
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let tolerance = self.tolerance.as_secs();
        if now.saturating_sub(timestamp) > tolerance {
            Err(Refused::TooOld)
        } else if timestamp.saturating_sub(now) > tolerance {
            Err(Refused::TooNew)
        } else {
            Ok(timestamp)
        }
    }
}
