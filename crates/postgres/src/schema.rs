//! The name of the schema, checked once, so that it can stand in SQL.

use posthouse_core::Invalid;
use std::fmt;

/// The schema that holds Posthouse's tables and functions: `posthouse` unless told otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schema(String);

const LONGEST: usize = 63 - "_operator".len();

impl Schema {
    /// The schema of this name: a lower-case letter or underscore, then letters, digits and underscores, at most 54 bytes:
    /// its roles are called after it, `_operator` behind it, and a name has 63.
    ///
    /// Anything else would need quoting in every tool that our users type it into, and is refused; so are `public` and
    /// `information_schema`, which are not ours to revoke rights in.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        let starts = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        let rest = name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !starts
            || !rest
            || name.len() > LONGEST
            || name.starts_with("pg_")
            || ["public", "information_schema"].contains(&name)
        {
            let shown = posthouse_core::text::excerpt(name, 64);
            return Err(Invalid::new(
                "schema",
                format!(
                    "{shown:?} is not a usable schema name (a-z, 0-9 and _, at most {LONGEST}, not starting with a digit or pg_, not public)"
                ),
            ));
        }
        Ok(Self(name.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// SQL that is written for the schema `posthouse`, for this one.
    pub(crate) fn apply(&self, sql: &str) -> String {
        sql.replace("posthouse.", &format!("{}.", self.0))
            .replace("search_path = posthouse,", &format!("search_path = {},", self.0))
            .replace("SCHEMA posthouse", &format!("SCHEMA {}", self.0))
    }
}

impl Default for Schema {
    fn default() -> Self {
        Self("posthouse".to_owned())
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
