//! The `posthouse` command: reads what was asked, does it, and says how it ended by its exit code.

mod cli;
mod commands;
mod config;
mod exit;
mod output;
mod relay;
mod timeline;

use clap::{CommandFactory, FromArgMatches};
use posthouse::Invalid;
use std::{process::ExitCode, time::Duration};

use cli::{Cli, Command};
use config::Sources;
use exit::{Exit, Failure};
use output::Output;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    // What the parser itself says obeys --color and --json as well, so they are looked for before it has run.
    let color = cli::color_of(&args);
    let parsed = Cli::command().color(color.for_help()).try_get_matches_from(&args);
    let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed.map_err(cli::with_tip) {
        Ok(cli) => {
            let out = Output::new(&cli.global);
            finish(&out, perform(&cli, &out))
        }
        Err(refusal) if refusal.use_stderr() && args.iter().any(|arg| arg == "--json") => {
            finish(&Output::for_programs(), Err(Failure::usage(&refusal)))
        }
        Err(answer) => {
            // Help and version are data; a reader that has seen enough of them is no failure.
            let _ = answer.print();
            ExitCode::from(if answer.use_stderr() { Exit::Usage } else { Exit::Ok })
        }
    }
}

fn finish(out: &Output, result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else { return Exit::Ok.into() };
    out.failure(&failure);
    failure.exit.into()
}

fn perform(cli: &Cli, out: &Output) -> Result<(), Failure> {
    if let Command::Relay(args) = &cli.command {
        let sources = Sources::of_process(cli.global.config.as_deref(), cli.global.store.as_deref());
        return relay::run(args, sources, out);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        tokio::select! {
            // In this order: somebody must listen for Ctrl-C before there is anything to interrupt.
            biased;
            _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
            result = run(cli, out) => result,
        }
    });
    // A thread that still reads standard input would be waited for until its end; a write to a file ends sooner than this.
    runtime.shutdown_timeout(Duration::from_millis(500));
    result
}

async fn run(cli: &Cli, out: &Output) -> Result<(), Failure> {
    let sources = Sources::of_process(cli.global.config.as_deref(), cli.global.store.as_deref());
    // The demo has a store of its own, and a configuration is not asked for one.
    let store = match &cli.command {
        Command::Demo(args) => return commands::demo::run(args, out).await,
        Command::Config(asked) => return commands::config::run(asked, &sources, out).await,
        Command::Doctor(args) => return commands::doctor::run(args, &sources, out).await,
        _ => one_store(&sources)?,
    };
    let store = store.url.expose();
    match &cli.command {
        Command::Demo(_) | Command::Config(_) | Command::Doctor(_) | Command::Relay(_) => Ok(()),
        Command::Migrate(args) => {
            // What binds producers is written into the store, so all of the configuration must be sound.
            let loaded = config::load(&sources)?;
            commands::migrate::run(args, store, &loaded, out).await
        }
        Command::Enqueue(args) => commands::enqueue::run(args, store, out).await,
        Command::Messages(asked) => commands::messages::run(asked, store, out).await,
        Command::Dead(asked) => commands::dead::run(asked, store, out).await,
        Command::Repair(args) => commands::upkeep::repair(args, store, out).await,
        Command::Prune(args) => commands::upkeep::prune(args, store, out).await,
        Command::Audit(args) => commands::audit::run(args, store, out).await,
        Command::Ledger(asked) => commands::ledger::run(asked, store, out).await,
        Command::Saga(asked) => commands::saga::run(asked, store, out).await,
        Command::Stats => commands::stats::run(store, out).await,
        Command::Destinations(asked) => commands::destinations::run(asked, store, out).await,
    }
}

/// The store that a command is for.
fn one_store(sources: &Sources) -> Result<config::Store, Failure> {
    let mut stores = config::load_stores(sources)?;
    if stores.len() > 1 {
        let names: Vec<_> = stores.iter().filter_map(|store| store.name.as_deref()).collect();
        let help = format!("choose one with --store: {}", names.join(", "));
        return Err(Failure::from(Invalid::new("store", "the configuration names several")).help(help));
    }
    stores
        .pop()
        .ok_or_else(|| Failure::new("the configuration names no store"))
}
