//! Which program may work on which schema, and what bringing a schema up to date takes. One rule for every store.
//!
//! A schema stores its version, and the oldest program, by the version it knows, that can still work with it:
//!
//! | the schema is | opening it | migrating it |
//! |---|---|---|
//! | not there | refused: migrate | makes it |
//! | older than the program | refused: migrate | brings it up to date |
//! | as new as the program | works | applies the functions again, whole |
//! | newer, and it admits the program | works | leaves it as it is |
//! | newer, and it does not | refused: upgrade the program | refused: upgrade the program |

use crate::Error;

/// The next step for somebody whose schema is missing or old. A store's text ends with it.
pub const MIGRATE: &str = "run `posthouse migrate`";
/// The next step for somebody whose program is old.
pub const UPGRADE: &str = "upgrade this program";

/// A version of the schema, as it is stored in it; also what a program knows and makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct SchemaVersion {
    /// Which changes of the tables it has.
    pub version: i64,
    /// The oldest program that can work with it, by the version that program knows.
    pub oldest: i64,
}

/// How a schema that a program can deal with stands to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// There is none.
    Absent,
    /// The program needs a newer one.
    Older,
    /// It is the one that the program makes.
    Current,
    /// It is newer, and admits the program.
    Newer,
}

impl Fit {
    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Older => "older",
            Self::Current => "current",
            Self::Newer => "newer",
        }
    }
}

impl SchemaVersion {
    /// How what was found in `place` stands to the program that makes this version. Refuses a schema that does not admit it.
    pub fn fit(self, place: &str, found: Option<Self>) -> Result<Fit, Error> {
        match found {
            None => Ok(Fit::Absent),
            Some(f) if f.version < self.version => Ok(Fit::Older),
            Some(f) if f.version == self.version => Ok(Fit::Current),
            Some(f) if f.oldest <= self.version => Ok(Fit::Newer),
            Some(f) => Err(Error::Schema(format!(
                "{place} has version {} of the Posthouse schema, which needs a program that knows version {} or later; this one \
                 knows {}; {UPGRADE}",
                f.version, f.oldest, self.version
            ))),
        }
    }

    /// Refuses a schema that the program which makes this version cannot work on.
    pub fn check(self, place: &str, found: Option<Self>) -> Result<(), Error> {
        let problem = match (self.fit(place, found)?, found) {
            (Fit::Current | Fit::Newer, _) => return Ok(()),
            (Fit::Older, Some(f)) => format!(
                "has version {} of the Posthouse schema and this program needs version {}",
                f.version, self.version
            ),
            _ => "has no Posthouse schema".to_owned(),
        };
        Err(Error::Schema(format!("{place} {problem}; {MIGRATE}")))
    }
}

/// One change of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Migration {
    /// The version that the schema has after it.
    pub version: i64,
    /// What it is about.
    pub name: &'static str,
}

/// What bringing a schema up to date takes, or took.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upgrade {
    /// Where the schema is, as people call it.
    pub place: String,
    /// How the schema stood before.
    pub fit: Fit,
    /// What was there before.
    pub found: Option<SchemaVersion>,
    /// What is there afterwards.
    pub target: SchemaVersion,
    /// The changes of the tables, in order.
    pub migrations: Vec<Migration>,
    /// How many texts of functions and views are applied again, whole.
    pub functions: usize,
}

/// A role of a database, and what making it takes.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct RolePlan {
    /// Its name.
    pub name: String,
    /// Whether it is there already.
    pub exists: bool,
    /// The functions that it may execute.
    pub execute: Vec<String>,
    /// The tables and views that it may read.
    pub select: Vec<String>,
}

impl Upgrade {
    /// What it takes to bring what was found up to `target`, of all `migrations` and `functions` of a program. Refuses a schema
    /// that does not admit the program.
    pub fn plan(
        place: &str,
        found: Option<SchemaVersion>,
        target: SchemaVersion,
        migrations: impl IntoIterator<Item = Migration>,
        functions: usize,
    ) -> Result<Self, Error> {
        let fit = target.fit(place, found)?;
        // A newer schema has newer functions: ours would be a step back.
        let (newer, from) = (fit == Fit::Newer, found.map_or(0, |f| f.version));
        Ok(Self {
            place: place.to_owned(),
            fit,
            found,
            target: found.filter(|_| newer).unwrap_or(target),
            migrations: migrations.into_iter().filter(|m| m.version > from).collect(),
            functions: if newer { 0 } else { functions },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn v(version: i64, oldest: i64) -> SchemaVersion {
        SchemaVersion { version, oldest }
    }

    fn fit(found: Option<SchemaVersion>) -> Result<Fit, String> {
        v(5, 3).fit("here", found).map_err(|e| e.to_string())
    }

    #[test]
    fn a_schema_is_worked_on_where_it_admits_the_program() {
        assert_eq!(fit(None), Ok(Fit::Absent));
        assert_eq!(fit(Some(v(4, 4))), Ok(Fit::Older));
        assert_eq!(fit(Some(v(5, 5))), Ok(Fit::Current));
        assert_eq!(fit(Some(v(9, 5))), Ok(Fit::Newer));
        let refused = fit(Some(v(9, 6))).unwrap_err();
        for part in [
            "here has version 9",
            "version 6 or later",
            "knows 5",
            "upgrade this program",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
        assert!(v(5, 3).check("here", Some(v(9, 5))).is_ok());
        for old in [None, Some(v(4, 1))] {
            let refused = v(5, 3).check("here", old).unwrap_err().to_string();
            assert!(refused.ends_with(MIGRATE), "{refused}");
        }
    }

    #[test]
    fn a_plan_never_goes_back() {
        let all = [1, 2, 3, 4, 5].map(|version| Migration { version, name: "m" });
        let plan = |found| Upgrade::plan("here", found, v(5, 3), all, 7);
        let runs = |found| -> Vec<_> { plan(found).unwrap().migrations.iter().map(|m| m.version).collect() };
        assert_eq!(runs(None), [1, 2, 3, 4, 5]);
        assert_eq!(runs(Some(v(3, 2))), [4, 5]);
        assert_eq!(runs(Some(v(5, 3))), [0; 0]);
        assert_eq!(plan(Some(v(5, 3))).unwrap().functions, 7);
        let newer = plan(Some(v(9, 5))).unwrap();
        assert_eq!((newer.migrations.len(), newer.functions, newer.target), (0, 0, v(9, 5)));
        assert!(plan(Some(v(9, 6))).is_err());
    }
}
