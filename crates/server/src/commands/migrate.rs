//! `posthouse migrate`: makes the schema, brings it up to date, or says what that would take.

use posthouse::{AnyStore, Error, Fit, RolePlan, SchemaVersion, StoreSettings, Upgrade};
use serde_json::json;
use tokio::sync::mpsc;

use crate::{
    cli::Migrate,
    config::Loaded,
    exit::Failure,
    output::{Output, visible},
};

/// Runs the command.
pub async fn run(args: &Migrate, store: &str, loaded: &Loaded, out: &Output) -> Result<(), Failure> {
    if args.check {
        return check(store, out).await;
    }
    // Asked for first: where there can be no roles, nothing is to be changed.
    let roles = match args.roles {
        true => AnyStore::plan_roles(store).await?,
        false => Vec::new(),
    };
    if args.dry_run {
        return tell(&AnyStore::plan_migration(store).await?, &roles, out);
    }
    let (send, mut waits) = mpsc::unbounded_channel();
    let report = |text: &str| drop(send.send(text.to_owned()));
    let done = with_notes(out, &mut waits, AnyStore::migrate_reporting(store, &report)).await?;
    if done.fit != Fit::Newer {
        configure(store, loaded, out).await?;
    }
    let roles = match args.roles {
        true => with_notes(out, &mut waits, AnyStore::make_roles_reporting(store, &report)).await?,
        false => Vec::new(),
    };
    out.note(&match done.fit {
        Fit::Absent | Fit::Older => format!("The schema is ready: version {}.", done.target.version),
        Fit::Current => format!("The schema is up to date: version {}.", done.target.version),
        Fit::Newer => format!("{}; it was left as it is.", newer(done.target)),
    });
    if out.json {
        let mut document = facts(&done);
        document["changed"] = matches!(done.fit, Fit::Absent | Fit::Older).into();
        document["roles"] = json!(roles);
        return out.document(&document);
    }
    for role in &roles {
        out.data(role)?;
    }
    if !roles.is_empty() {
        out.note("Nobody can log in as one of these: GRANT them to those who can.");
    }
    Ok(())
}

/// Runs the work, and shows its waits as notes meanwhile.
async fn with_notes<T>(
    out: &Output,
    waits: &mut mpsc::UnboundedReceiver<String>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            Some(text) = waits.recv() => out.note(&text),
            done = &mut work => return done,
        }
    }
}

/// Writes what the configuration says of producers into the store, where every one of them obeys it.
async fn configure(store: &str, loaded: &Loaded, out: &Output) -> Result<(), Failure> {
    // Whether there is anything to write is known without asking the store.
    if loaded.settings(StoreSettings::default()).is_none() {
        return Ok(());
    }
    let store = AnyStore::open(store).await?;
    let stored = store.settings().await?;
    if let Some(wanted) = loaded.settings(stored.clone()).filter(|wanted| *wanted != stored) {
        store.configure(&wanted).await?;
        out.note("What binds producers is written into the store: payload_max_bytes, require_tenant, max_attempts, dedupe_days.");
    }
    Ok(())
}

/// `migrate --check`: opening refuses a schema that this program cannot work with, and says how it is not.
async fn check(store: &str, out: &Output) -> Result<(), Failure> {
    AnyStore::open(store).await?;
    let found = AnyStore::plan_migration(store).await?;
    out.note(&match found.fit {
        Fit::Newer => format!("{}.", newer(found.target)),
        _ => format!("The schema is up to date: version {}.", found.target.version),
    });
    if out.json {
        out.document(&facts(&found))?;
    }
    Ok(())
}

fn newer(SchemaVersion { version, oldest }: SchemaVersion) -> String {
    format!("The schema has version {version}, newer than this program, and admits programs from version {oldest} on")
}

/// What programs are told of a migration: how the schema stood before it, and what there is to do.
fn facts(upgrade: &Upgrade) -> serde_json::Value {
    json!({
        "schema": upgrade.fit.as_str(),
        "from": upgrade.found.map(|found| found.version),
        "to": upgrade.target.version,
        "oldest": upgrade.target.oldest,
        "migrations": upgrade.migrations,
        "functions": upgrade.functions,
    })
}

/// `migrate --dry-run`
fn tell(plan: &Upgrade, roles: &[RolePlan], out: &Output) -> Result<(), Failure> {
    if out.json {
        let mut document = facts(plan);
        document["roles"] = json!(roles);
        return out.document(&document);
    }
    let steps: Vec<_> = steps(plan).into_iter().chain(grants(roles)).collect();
    if !steps.is_empty() {
        let items = steps
            .into_iter()
            .map(|(word, what)| vec![word.to_owned(), visible(&what)]);
        out.data(&out.broken_table(&["STEP", "WHAT"], items.collect()))?;
    }
    let version = plan.target.version;
    out.note(&match plan.fit {
        Fit::Absent => format!("There is no schema yet; it would be made at version {version}. Nothing was changed."),
        Fit::Older => {
            let from = plan.found.map_or(0, |found| found.version);
            format!("The schema would go from version {from} to {version}. Nothing was changed.")
        }
        Fit::Current => format!("The schema is up to date: version {version}. Nothing was changed."),
        Fit::Newer => format!(
            "{}; a migration would leave it as it is. Nothing was changed.",
            newer(plan.target)
        ),
    });
    Ok(())
}

/// What a migration would do, as verb and object.
fn steps(plan: &Upgrade) -> Vec<(&'static str, String)> {
    let mut steps = Vec::new();
    if plan.fit == Fit::Absent {
        steps.push(("create", plan.place.clone()));
    }
    for migration in &plan.migrations {
        steps.push(("run", format!("migration {}: {}", migration.version, migration.name)));
    }
    if plan.functions > 0 {
        steps.push((
            "apply",
            format!("the functions and views that differ, of {} files", plan.functions),
        ));
    }
    if !plan.migrations.is_empty() {
        let SchemaVersion { version, oldest } = plan.target;
        steps.push((
            "set",
            format!("version {version}, for programs that know version {oldest} or later"),
        ));
    }
    steps
}

/// What making the roles would do.
fn grants(roles: &[RolePlan]) -> Vec<(&'static str, String)> {
    let mut steps = Vec::new();
    for role in roles {
        let RolePlan { name, exists, .. } = role;
        steps.push((if *exists { "keep" } else { "create" }, format!("role {name}")));
        for (right, what) in [("EXECUTE", &role.execute), ("SELECT", &role.select)] {
            if !what.is_empty() {
                steps.push(("grant", format!("{right} on {} to {name}", what.join(", "))));
            }
        }
    }
    // The first of them owns, the others are allowed.
    if let Some(owner) = roles.first() {
        steps.push((
            "own",
            format!("everything in the schema would belong to {}, and you to it", owner.name),
        ));
    }
    steps
}
