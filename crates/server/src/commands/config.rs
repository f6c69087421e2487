//! `posthouse config`: whether the configuration is sound, and what is in force.

use serde_json::json;

use crate::{
    cli::{Config, ConfigCheck, ConfigShow},
    config::{self, Changes, Loaded, Problem, Sources, watch},
    exit::Failure,
    output::Output,
};

/// Runs the command.
pub async fn run(asked: &Config, sources: &Sources, out: &Output) -> Result<(), Failure> {
    match asked {
        Config::Check(args) => check(args, sources, out).await,
        Config::Show(args) => show(args, sources, out),
    }
}

/// `config check`
async fn check(args: &ConfigCheck, sources: &Sources, out: &Output) -> Result<(), Failure> {
    let mut reading = config::load(sources);
    if !args.watch {
        let loaded = reading?;
        warn(&loaded.warnings, out);
        return tell(sources, &loaded, None, out);
    }
    let mut watch = watch::watch(sources.clone(), reading.clone())?;
    let mut in_force: Option<Loaded> = None;
    loop {
        match reading {
            Ok(loaded) => {
                warn(&loaded.warnings, out);
                let changes = in_force.as_ref().map(|before| config::diff(before, &loaded));
                tell(sources, &loaded, changes.as_ref(), out)?;
                in_force = Some(loaded);
            }
            Err(problems) => out.failure(&problems.into()),
        }
        reading = watch.next().await;
    }
}

fn warn(warnings: &[Problem], out: &Output) {
    warnings.iter().for_each(|problem| out.problem(problem));
}

fn tell(sources: &Sources, loaded: &Loaded, changes: Option<&Changes>, out: &Output) -> Result<(), Failure> {
    let (routes, stores) = (loaded.config.routes.len(), loaded.config.stores.len());
    let file = sources.file.as_ref().map(|file| file.display().to_string());
    if out.json {
        let mut document = json!({ "file": file, "sound": true, "routes": routes, "stores": stores, "warnings": loaded.warnings.len() });
        if let Some(changes) = changes {
            let keys = |list: &[config::Change]| list.iter().map(|change| change.key.clone()).collect::<Vec<_>>();
            document["changes"] = json!({ "live": keys(&changes.live), "restart": keys(&changes.restart), "migrate": keys(&changes.migrate) });
        }
        return out.document(&document);
    }
    let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let file = file.unwrap_or_else(|| format!("no {}; environment and defaults", config::DEFAULT_FILE));
    out.data(&format!(
        "{file}: sound, {}, {}",
        count(routes, "route"),
        count(stores, "store")
    ))?;
    for change in changes.into_iter().flat_map(|changes| &changes.live) {
        out.data(&format!("  changed: {}", words(change)))?;
    }
    for change in changes.into_iter().flat_map(|changes| &changes.restart) {
        out.data(&format!("  changed, needs a restart: {}", words(change)))?;
    }
    for change in changes.into_iter().flat_map(|changes| &changes.migrate) {
        out.data(&format!("  changed, needs posthouse migrate: {}", words(change)))?;
    }
    Ok(())
}

fn words(change: &config::Change) -> String {
    let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
    let text = match (&change.from, &change.to) {
        // A secret changed, which is not shown.
        (from, to) if from == to => change.key.clone(),
        (from, to) => format!("{}, from {} to {}", change.key, side(from), side(to)),
    };
    crate::output::visible(&text)
}

/// `config show`
fn show(args: &ConfigShow, sources: &Sources, out: &Output) -> Result<(), Failure> {
    let loaded = config::load(sources)?;
    warn(&loaded.warnings, out);
    if out.json {
        let file = sources.file.as_ref().map(|file| file.display().to_string());
        return out.document(&json!({ "file": file, "settings": config::document(&loaded.settings) }));
    }
    out.data(&config::toml(&loaded.settings, args.sources))
}
