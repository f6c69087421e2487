//! The `posthouse` command: reads what was asked, does it, and says how it ended by its exit code.

mod cli;
mod commands;
mod exit;
mod output;
mod timeline;

use clap::{CommandFactory, FromArgMatches};
use std::{process::ExitCode, time::Duration};

use cli::{Cli, Command};
use exit::{Exit, Failure};
use output::Output;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    // What the parser itself says obeys --color and --json as well, so they are looked for before it has run.
    let color = cli::color_of(&args);
    let parsed = Cli::command().color(color.for_help()).try_get_matches_from(&args);
    match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
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
    let store = cli.global.store.as_str();
    match &cli.command {
        Command::Demo(args) => commands::demo::run(args, out).await,
        Command::Migrate(args) => commands::migrate::run(args, store, out).await,
        Command::Enqueue(args) => commands::enqueue::run(args, store, out).await,
        Command::Messages(asked) => commands::messages::run(asked, store, out).await,
        Command::Dead(asked) => commands::dead::run(asked, store, out).await,
        Command::Repair(args) => commands::upkeep::repair(args, store, out).await,
        Command::Prune(args) => commands::upkeep::prune(args, store, out).await,
        Command::Audit(args) => commands::audit::run(args, store, out).await,
        Command::Stats => commands::stats::run(store, out).await,
        Command::Destinations(asked) => commands::destinations::run(asked, store, out).await,
    }
}
