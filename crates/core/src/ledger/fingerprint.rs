//! What was asked for under a key, as a hash.

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use std::{fmt, str::FromStr};

use crate::{Digest, Invalid};

/// SHA-256 of what was asked for. Every field stands behind its length, so that none run together; where names lead to values, their order does
/// not matter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint(pub Digest);

/// Sixty-four digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Fingerprint {
    type Err = Invalid;

    fn from_str(digits: &str) -> Result<Self, Invalid> {
        let mut bytes = [0; 32];
        let value = |digit: u8| {
            char::from(digit)
                .to_digit(16)
                .and_then(|value| u8::try_from(value).ok())
        };
        let pairs = digits
            .as_bytes()
            .chunks_exact(2)
            .map(|pair| Some((value(pair[0])?, value(pair[1])?)));
        let pairs: Option<Vec<_>> = pairs.collect();
        let Some(pairs) = pairs.filter(|pairs| pairs.len() == bytes.len() && digits.len() == 64) else {
            return Err(Invalid::new("fingerprint", "must have 64 hexadecimal digits"));
        };
        for (byte, (high, low)) in bytes.iter_mut().zip(pairs) {
            *byte = high << 4 | low;
        }
        Ok(Self(Digest(bytes)))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl Fingerprint {
    /// Of bytes, as they are.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Digest::of_fields(&[b"bytes", bytes]))
    }

    /// Of fields by name, in whatever order they come.
    pub fn of_fields<'a>(fields: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut fields: Vec<_> = fields.into_iter().collect();
        fields.sort();
        let flat = fields.into_iter().flat_map(|(name, value)| [name.as_bytes(), value]);
        Self(Digest::of_fields(
            &std::iter::once(&b"fields"[..]).chain(flat).collect::<Vec<_>>(),
        ))
    }

    /// Of a JSON document: spaces, the order of members and how characters are escaped do not matter. Numbers count as they are written, because programs differ in
    /// what they read in large ones. What is no JSON, or is deeper than 32, counts as bytes.
    pub fn of_json(text: &[u8]) -> Self {
        let mut hash = Sha256::new();
        match serde_json::from_slice::<&RawValue>(text).is_ok_and(|value| feed(&mut hash, value.get(), DEEPEST)) {
            true => Self(Digest(hash.finalize().into())),
            false => Self::of_bytes(text),
        }
    }

    /// Of anything that can be written as JSON.
    pub fn of(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self::of_json(&serde_json::to_vec(value)?))
    }
}

/// The members of an object as they stand there, also those of one name.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// The deepest document that is read; a deeper one counts as bytes.
const DEEPEST: u32 = 32;

/// Feeds one value: what it is, how long, and what it holds. False if it is deeper than this.
fn feed(hash: &mut Sha256, text: &str, deepest: u32) -> bool {
    let Some(deeper) = deepest.checked_sub(1) else {
        return false;
    };
    match text.as_bytes().first() {
        Some(b'{') => serde_json::from_str::<Members<'_>>(text).is_ok_and(|Members(mut members)| {
            // Stable: which of two of one name comes last may matter to whoever reads them.
            members.sort_by(|a, b| a.0.cmp(&b.0));
            head(hash, b'{', members.len());
            members.into_iter().all(|(name, value)| {
                head(hash, b'"', name.len());
                hash.update(name);
                feed(hash, value.get(), deeper)
            })
        }),
        Some(b'[') => serde_json::from_str::<Vec<&RawValue>>(text).is_ok_and(|items| {
            head(hash, b'[', items.len());
            items.into_iter().all(|item| feed(hash, item.get(), deeper))
        }),
        Some(b'"') => serde_json::from_str::<String>(text).is_ok_and(|string| {
            head(hash, b'"', string.len());
            hash.update(string);
            true
        }),
        _ => {
            head(hash, b'=', text.len());
            hash.update(text);
            true
        }
    }
}

fn head(hash: &mut Sha256, what: u8, length: usize) {
    hash.update([what]);
    hash.update((length as u64).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Fingerprint {
        Fingerprint::of_json(text.as_bytes())
    }

    #[test]
    fn it_is_written_as_digits_and_read_again() {
        let print = Fingerprint::of_bytes(b"a");
        assert_eq!(print.to_string().parse(), Ok(print));
        for wrong in [
            "",
            "ab",
            &"0".repeat(63),
            &"0".repeat(66),
            &"g".repeat(64),
            &"\u{e9}".repeat(32),
        ] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_order_of_members_and_spaces_do_not_matter() {
        let one = of(r#"{"a":1,"b":{"c":[1,2],"d":"\u00e4"}}"#);
        assert_eq!(one, of("{ \"b\" : {\"d\":\"ä\", \"c\":[1,\n2]}, \"a\" : 1 }"));
        assert_ne!(one, of(r#"{"a":1,"b":{"c":[2,1],"d":"ä"}}"#));
    }

    #[test]
    fn what_differs_differs() {
        let all = [
            "1",
            "1.0",
            "\"1\"",
            "[1]",
            "[[1]]",
            "{\"1\":1}",
            "null",
            "true",
            "\"true\"",
            "[]",
            "{}",
            "\"\"",
            "[1,2]",
            "[12]",
            r#"["a","b"]"#,
            r#"["ab"]"#,
            r#"[["a"],"b"]"#,
            r#"[["a","b"]]"#,
            r#"{"a":"b"}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":1,"b":1}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a":2,"a":1}"#,
            r#"{"a":2}"#,
            r#"{"a":1}"#,
            "not json",
            "",
            " ",
            "{\"a\":1",
            "123456789012345678901234567890",
            "123456789012345678901234567891",
        ];
        let prints: std::collections::HashSet<_> = all.iter().map(|text| of(text)).collect();
        assert_eq!(prints.len(), all.len());
    }

    #[test]
    fn deep_documents_end() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(of(&deep), Fingerprint::of_bytes(deep.as_bytes()), "deeper than is read");
        let fair = "[".repeat(30) + &"]".repeat(30);
        assert_ne!(of(&fair), Fingerprint::of_bytes(fair.as_bytes()));
    }

    #[test]
    fn fields_do_not_run_together_and_have_no_order() {
        let of = |fields: &[(&str, &str)]| Fingerprint::of_fields(fields.iter().map(|(n, v)| (*n, v.as_bytes())));
        assert_eq!(of(&[("a", "1"), ("b", "2")]), of(&[("b", "2"), ("a", "1")]));
        assert_ne!(of(&[("a", "1"), ("b", "2")]), of(&[("a", "2"), ("b", "1")]));
        assert_ne!(of(&[("ab", "c")]), of(&[("a", "bc")]));
        assert_ne!(of(&[("a", "1")]), of(&[("a", "1"), ("a", "1")]));
    }
}
