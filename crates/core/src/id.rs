//! Identity of a message and of a lease, as types that cannot be mixed up.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use uuid::Uuid;

use crate::Invalid;

macro_rules! uuid_newtype {
    ($(#[$doc:meta])* $name:ident, $field:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
        impl FromStr for $name {
            type Err = Invalid;
            fn from_str(text: &str) -> Result<Self, Invalid> {
                Uuid::parse_str(text).map(Self).map_err(|_| Invalid::new($field, format!("{:?} is not a UUID", crate::text::excerpt(text, 64))))
            }
        }
    };
}

uuid_newtype!(
    /// The identity of a message: a UUID version 7 made by the client, the same over attempts and replays.
    ///
    /// It is never an order. It resolves an unknown commit: enqueue it again and be told whether it was there.
    MessageId,
    "id"
);
uuid_newtype!(
    /// The fence of a lease: random, and fresh for every claim. A worker's name is a label; this is what is checked.
    LeaseToken,
    "lease_token"
);
uuid_newtype!(
    /// The identity of a saga: a UUID version 7 made by whoever starts it.
    SagaId,
    "saga"
);
