//! The digest of a message's content.

use sha2::{Digest as _, Sha256};
use std::fmt;

/// SHA-256 over the length-prefixed content type and payload.
///
/// It tells a repeated enqueue from one that reuses a key for something else. The lengths are part of the hash, so that
/// no two pairs of content type and payload run together into the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of this content.
    pub fn of(content_type: &str, payload: &[u8]) -> Self {
        Self::of_fields(&[content_type.as_bytes(), payload])
    }

    /// SHA-256 over any list of fields, each prefixed by its length as eight big-endian bytes.
    pub fn of_fields(fields: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for field in fields {
            hash.update((field.len() as u64).to_be_bytes());
            hash.update(field);
        }
        Self(hash.finalize().into())
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Eight digits that tell a text from others where the text itself may be a secret.
pub fn tag(text: &str) -> String {
    let hash = Sha256::digest(text);
    hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_run_together() {
        assert_ne!(Digest::of("ab", b"c"), Digest::of("a", b"bc"));
        assert_ne!(Digest::of("", b""), Digest::of_fields(&[b""]));
    }

    #[test]
    fn is_sha256_of_the_length_prefixed_fields() {
        let by_hand: [u8; 32] = Sha256::digest(b"\0\0\0\0\0\0\0\x01a\0\0\0\0\0\0\0\x02bc").into();
        assert_eq!(Digest::of("a", b"bc"), Digest(by_hand));
    }
}
