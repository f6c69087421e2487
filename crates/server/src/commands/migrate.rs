//! `posthouse migrate`: makes the schema, brings it up to date, or says whether that is needed.

use posthouse::{AnyStore, Error};
use serde_json::json;

use crate::{cli::Migrate, exit::Failure, output::Output};

/// Runs the command.
pub async fn run(args: &Migrate, store: &str, out: &Output) -> Result<(), Failure> {
    // Opening refuses a schema that is not up to date, and says how it is not.
    let behind = match AnyStore::open(store).await {
        Ok(_) => None,
        Err(Error::Schema(problem)) => Some(problem),
        Err(other) => return Err(other.into()),
    };
    if let (true, Some(problem)) = (args.check, &behind) {
        return Err(Error::Schema(problem.clone()).into());
    }
    if !args.check {
        // Also when nothing is behind: the SQL functions are applied whole, whatever was done to them meanwhile.
        AnyStore::migrate(store).await?;
    }
    let roles = if args.roles {
        AnyStore::make_roles(store).await?
    } else {
        Vec::new()
    };
    let changed = behind.is_some();
    out.note(if changed {
        "The schema is ready."
    } else {
        "The schema is up to date."
    });
    if out.json {
        return out.document(&json!({ "schema": "current", "changed": changed, "roles": roles }));
    }
    for role in &roles {
        out.data(role)?;
    }
    if !roles.is_empty() {
        out.note("Nobody can log in as one of these: GRANT them to those who can.");
    }
    Ok(())
}
