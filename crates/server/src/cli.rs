//! What can be asked of the command line, and its help.

use clap::{
    ArgGroup, Args, Parser, Subcommand, ValueEnum,
    builder::PossibleValuesParser,
    builder::TypedValueParser,
    error::{ContextKind, ContextValue, ErrorKind},
};
use posthouse::{
    DeadReason, Invalid, Limits, MessageId, OnDead, PruneStates, SagaId, State,
    ledger::{EntryKey, Status},
    message::parse_duration,
    saga::{HeldReason, SagaState},
};
use std::{ffi::OsString, path::PathBuf, time::Duration};

use crate::exit::Failure;

/// A transactional outbox: messages commit with your data, or not at all
#[derive(Debug, Parser)]
#[command(
    name = "posthouse",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  posthouse demo                                        the whole story, in a few seconds
  posthouse migrate                                     make or upgrade the schema
  posthouse enqueue order.placed --data '{\"order\":42}'
  posthouse stats                                       how much there is of everything
  posthouse doctor                                      what is wrong, and what to do about it
  posthouse messages explain ID                         why is it not delivered?
  posthouse dead replay --topic order.placed --dry-run

Exit codes: 0 ok, 1 failure, 2 usage or invalid input, 3 not found, 4 conflict or lease lost,
            5 unavailable (try again), 130 interrupted"
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[cfg(feature = "surreal")]
const STORE: &str = "\
sqlite://PATH, postgres://USER@HOST/DATABASE[?schema=NAME], surrealkv://FOLDER,
surrealdb://USER:PASSWORD@HOST/NAMESPACE/DATABASE, or its name in the
configuration; also set by POSTHOUSE_STORE__URL
[default: sqlite://posthouse.db]";
#[cfg(not(feature = "surreal"))]
const STORE: &str = "\
sqlite://PATH or postgres://USER@HOST/DATABASE[?schema=NAME], or its name in
the configuration; also set by POSTHOUSE_STORE__URL
[default: sqlite://posthouse.db]";

/// What every command understands.
#[derive(Debug, Args)]
pub struct Global {
    /// The configuration, else posthouse.toml if it is there; or POSTHOUSE_CONFIG
    #[arg(long, global = true, value_name = "FILE", env = "POSTHOUSE_CONFIG", hide_env = true)]
    #[arg(help_heading = "Global options")]
    pub config: Option<PathBuf>,
    // Who wins is decided where the configuration is read, so that there is one place that knows.
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    #[arg(help = STORE)]
    pub store: Option<String>,
    /// Write data as JSON: one document, or one line for each item of a list
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// Say nothing but data and errors
    #[arg(long, short, global = true, help_heading = "Global options")]
    pub quiet: bool,
    /// Colours: auto, always or never; NO_COLOR is honoured
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "WHEN")]
    #[arg(hide_possible_values = true, help_heading = "Global options")]
    pub color: Color,
}

/// When to use colours. The words explain themselves; documented, each would take a paragraph of every help page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// The same for what the parser itself writes.
    pub fn for_help(self) -> clap::ColorChoice {
        match self {
            Self::Auto => clap::ColorChoice::Auto,
            Self::Always => clap::ColorChoice::Always,
            Self::Never => clap::ColorChoice::Never,
        }
    }
}

/// The colour flag of arguments that are not parsed yet.
pub fn color_of(args: &[OsString]) -> Color {
    let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let joined = words.iter().find_map(|word| word.strip_prefix("--color="));
    let apart = words.windows(2).find(|pair| pair[0] == "--color").map(|pair| &*pair[1]);
    joined
        .or(apart)
        .and_then(|word| Color::from_str(word, true).ok())
        .unwrap_or_default()
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Tell the whole story on a SQLite file of its own, with relays, one of them killed
    Demo(Demo),
    /// Deliver messages, by the routes of the configuration, until told to stop
    #[command(after_help = "\
Examples:
  posthouse relay                                       by posthouse.toml
  posthouse --config /etc/posthouse.toml relay
  kill -HUP PID                                         read the configuration again
  kill -TERM PID                                        stop: what is under way is finished, the rest goes back

Any number of relays may run on one store. It answers at /livez, /readyz and /metrics; see docs/configuration.md.")]
    Relay(Relay),
    /// Make the schema, or bring it up to date
    Migrate(Migrate),
    /// Enqueue a message, in a transaction of its own
    Enqueue(Enqueue),
    /// Look at messages, and decide about those that wait
    #[command(
        subcommand,
        after_help = "\
Examples:
  posthouse messages list --state pending
  posthouse messages explain 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10"
    )]
    Messages(Messages),
    /// Look at dead letters, and decide about them
    #[command(
        subcommand,
        after_help = "\
Examples:
  posthouse dead list --code http_503
  posthouse dead replay --code http_503 --dry-run"
    )]
    Dead(Dead),
    /// Take back leases that ran out
    Repair(Repair),
    /// Remove messages that ended long ago
    Prune(Prune),
    /// Who did what by hand, and which workers lost their leases
    Audit(Audit),
    /// Look at what was begun under a key, and how it ended
    #[command(
        subcommand,
        after_help = "\
Examples:
  posthouse ledger list --scope orders --status failed
  posthouse ledger show orders 7f3a"
    )]
    Ledger(Ledger),
    /// Look at sagas, start them, and decide about those that wait for a person
    #[command(
        subcommand,
        after_help = "\
Examples:
  posthouse saga lint trip.toml
  posthouse saga start trip.toml --key trip-42 --input '{\"city\":\"Rome\"}'
  posthouse saga list --state held
  posthouse saga show trip/trip-42"
    )]
    Saga(Saga),
    /// How many messages there are, how old the oldest is, and how fast they are delivered
    #[command(after_help = "\
Examples:
  posthouse stats
  posthouse stats --json | jq .messages.dead.value

Each number is counted, up to 10,000; 10000+ is a lower bound (in JSON \"exact\": false).
Deliveries and the time to empty come from what running relays report every 5 seconds.")]
    Stats,
    /// Look for what commonly goes wrong, and say what to do about it
    Doctor(Doctor),
    /// Look at destinations, and stop or start sending to them
    #[command(
        subcommand,
        after_help = "\
Examples:
  posthouse destinations list
  posthouse destinations pause 'https://shop.example#097d5636' --note 'maintenance until six'"
    )]
    Destinations(Destinations),
    /// Check the configuration, and show what is in force
    #[command(
        subcommand,
        after_help = "\
Examples:
  posthouse config check
  posthouse --config /etc/posthouse.toml config show --sources"
    )]
    Config(Config),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  posthouse doctor
  posthouse doctor --json | jq '.findings[] | select(.level != \"ok\")'

It changes nothing. Exits with 1 when a check fails; warnings alone are 0.")]
pub struct Doctor {
    /// Tell of transactions that have been open for this long: 30s, 15m, 2h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub old: Duration,
}

#[derive(Debug, Args)]
pub struct Relay {
    /// Stop when standard input ends, which it does with whoever holds the other end: for programs that start relays
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

#[derive(Debug, Subcommand)]
pub enum Config {
    /// Tell everything that is wrong with the configuration, at once
    #[command(after_help = "\
Examples:
  posthouse config check
  posthouse config check --watch

Exits with 2 when something is wrong. It looks at files and variables, not into databases.")]
    Check(ConfigCheck),
    /// Show what is in force, without secrets
    #[command(after_help = "\
Examples:
  posthouse config show --sources
  posthouse config show --json | jq '.settings[] | select(.source.kind != \"default\")'")]
    Show(ConfigShow),
}

#[derive(Debug, Args)]
pub struct ConfigCheck {
    /// Check again whenever a file changes, and on SIGHUP, until interrupted
    #[arg(long)]
    pub watch: bool,
}

#[derive(Debug, Args)]
pub struct ConfigShow {
    /// Say where each value came from
    #[arg(long)]
    pub sources: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  posthouse demo
  posthouse demo --keep demo.db && posthouse --store sqlite://demo.db messages list")]
pub struct Demo {
    /// Keep the database in this new file, to look at it afterwards
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  posthouse migrate                                     creates posthouse.db
  posthouse --store postgres://me@localhost/shop migrate
  posthouse migrate --dry-run                           what it would do
  posthouse migrate --check                             exits with 1 when there is something to do
  posthouse migrate --roles --dry-run                   which roles it would make, and what each may

A program and a schema of different versions: see docs/operating.md.")]
pub struct Migrate {
    /// Change nothing; succeed only if the schema is one that this program can work with
    #[arg(long, conflicts_with_all = ["dry_run", "roles"])]
    pub check: bool,
    /// Change nothing; tell what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Make the roles too: owner, producer, relay, operator and viewer (PostgreSQL)
    #[arg(long)]
    pub roles: bool,
}

#[derive(Debug, Args)]
#[command(override_usage = "posthouse enqueue [OPTIONS] TOPIC <--data TEXT | --file FILE | ->")]
#[command(group(ArgGroup::new("payload_source").required(true).args(["stdin", "data", "file"])))]
#[command(after_help = "\
Examples:
  posthouse enqueue order.placed --data '{\"order\":42}' --key order-42
  posthouse enqueue report.ready --file report.pdf --content-type application/pdf
  make-order | posthouse enqueue order.placed - --dedupe order-42/placed --delay 15m

Prints the id. An application enqueues in the transaction of its own change: see the library.")]
pub struct Enqueue {
    /// What the message is about, for instance order.placed
    pub topic: String,
    /// Read the payload from standard input
    #[arg(value_name = "-", value_parser = ["-"], hide_possible_values = true)]
    pub stdin: Option<String>,
    /// The payload itself
    #[arg(
        long,
        short,
        visible_alias = "payload",
        value_name = "TEXT",
        allow_hyphen_values = true
    )]
    pub data: Option<String>,
    /// Read the payload from a file
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// What the payload is; JSON is checked
    #[arg(long, short = 't', value_name = "TYPE", default_value = "application/json")]
    pub content_type: String,
    /// Order key: messages with the same one are sent one at a time, in order
    #[arg(long, short, value_name = "KEY")]
    pub key: Option<String>,
    /// Dedupe key: enqueued once for the same topic and key
    #[arg(long, value_name = "KEY")]
    pub dedupe: Option<String>,
    /// Accept what is there when the key or id is taken by other content
    #[arg(long)]
    pub keep: bool,
    /// Send it no earlier than this from now: 250ms, 30s, 15m, 2h, 7d
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub delay: Option<Duration>,
    /// Give it up, unsent, when this has passed
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub deliver_in: Option<Duration>,
    /// Whose it is
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub tenant: String,
    /// Which application owns it
    #[arg(long, value_name = "NAME", default_value = posthouse::Message::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// A header to send with it; may be repeated
    #[arg(long = "header", short = 'H', value_name = "NAME=VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// Its identity; repeat it to learn whether it was committed
    #[arg(long, value_name = "UUID", value_parser = message_id)]
    pub id: Option<MessageId>,
    /// Leases in all before it is dead, unless its route sets a budget
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(Limits::ATTEMPTS)))]
    pub max_attempts: Option<u32>,
    /// Dead, does it let later ones of its key pass, or block?
    #[arg(long, value_name = "WHAT", default_value = "pass", value_parser = words(OnDead::ALL, OnDead::as_str))]
    #[arg(hide_possible_values = true)]
    pub on_dead: OnDead,
    /// Do not wait for other producers of the order key to commit
    #[arg(long)]
    pub relaxed: bool,
}

#[derive(Debug, Subcommand)]
pub enum Messages {
    /// List messages, newest first
    List(List),
    /// Show one message with everything that happened to it; never its payload
    Show(Show),
    /// Tell why a message is not delivered, and what to do about it
    #[command(after_help = "\
Examples:
  posthouse messages explain 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10
  posthouse messages explain 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10 --json | jq -r .causes[].cause")]
    Explain(Show),
    /// Give up a message that waits or is quarantined; its order key goes on
    Cancel(Verb),
    /// State that a message was delivered
    Resolve(Resolve),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  posthouse messages list --state pending --topic order.placed
  posthouse messages list --since 2h --json | jq -r .id

With --json, when there may be more, the last line on standard error is
{\"next\":{\"before\":SEQ,\"stopped\":\"limit\"}}, or \"patience\": go on with --before SEQ.")]
pub struct List {
    /// Only those that are pending, leased, done, dead or quarantined
    #[arg(long, value_name = "STATE", value_parser = words(State::ALL, State::as_str), hide_possible_values = true)]
    pub state: Option<State>,
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub page: PageArgs,
}

/// Which messages.
#[derive(Debug, Default, Args)]
pub struct Which {
    /// Only this topic
    #[arg(long)]
    pub topic: Option<String>,
    /// Only this tenant; '' for those without one
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Only this namespace
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Only this order key
    #[arg(long)]
    pub key: Option<String>,
    /// Only those whose last attempt ended with this code: http_503
    #[arg(long)]
    pub code: Option<String>,
    /// Only those enqueued in the last TIME: 30s, 15m, 2h, 7d
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub since: Option<Duration>,
    /// Only those enqueued longer than TIME ago
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub until: Option<Duration>,
}

/// Which page.
#[derive(Debug, Args)]
pub struct PageArgs {
    /// At most this many
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// Only those before this number (seq): the next page
    #[arg(long, value_name = "SEQ")]
    pub before: Option<i64>,
    /// Go on looking for what is rare for at most this long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub patience: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  posthouse messages show 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10
  posthouse messages show 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10 --json | jq .attempts")]
pub struct Show {
    /// The message
    #[arg(value_name = "ID", value_parser = message_id)]
    pub id: MessageId,
}

/// In whose name something is done by hand. It is written into the audit.
#[derive(Debug, Args)]
pub struct Who {
    /// Who does it
    #[arg(long, value_name = "NAME", env = "POSTHOUSE_ACTOR", hide_env_values = true, default_value_t = user())]
    pub actor: String,
    /// Why, for the audit; required to change anything
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
}

impl Who {
    /// The note for the audit. A verb without one is refused before it changes anything.
    pub fn note(&self) -> Result<&str, Failure> {
        let note = self.note.as_deref().filter(|note| !note.trim().is_empty());
        note.ok_or_else(|| {
            Failure::not_confirmed("--note is missing: say why, for the audit; nothing was changed")
                .help("add for instance: --note 'the address is right now'")
        })
    }
}

fn user() -> String {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    set("USER")
        .or_else(|| set("LOGNAME"))
        .unwrap_or_else(|| "operator".to_owned())
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  posthouse messages cancel 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10 --note 'the order was withdrawn'")]
pub struct Verb {
    /// The messages
    #[arg(value_name = "ID", value_parser = message_id, required = true)]
    pub ids: Vec<MessageId>,
    #[command(flatten)]
    pub who: Who,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  posthouse messages resolve 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10 --note 'confirmed by phone' --receipt B-77")]
pub struct Resolve {
    /// The message
    #[arg(value_name = "ID", value_parser = message_id)]
    pub id: MessageId,
    /// The receiver's answer: its ledger entry and the audit keep it
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub receipt: String,
    #[command(flatten)]
    pub who: Who,
}

#[derive(Debug, Subcommand)]
pub enum Dead {
    /// List dead letters, newest first
    List(DeadList),
    /// Show one with everything that happened to it; never its payload
    #[command(after_help = "\
Example:
  posthouse dead show 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10")]
    Show(Show),
    /// Send dead or quarantined messages round again, by id or by filter
    Replay(Replay),
    /// Hold messages until somebody decides about them
    #[command(after_help = "\
Example:
  posthouse dead quarantine 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10 --note 'ask billing first'

Then: posthouse dead list --quarantined; replay, resolve, cancel or discard it.")]
    Quarantine(Verb),
    /// Remove dead or quarantined messages with their evidence; the audit remembers
    #[command(after_help = "\
Example:
  posthouse dead discard 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10 --note 'a test'

It cannot be undone.")]
    Discard(Verb),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  posthouse dead list --reason exhausted --code http_503
  posthouse dead list --quarantined --tenant acme

With --json, when there may be more, the last line on standard error is
{\"next\":{\"before\":SEQ,\"stopped\":\"limit\"}}, or \"patience\": go on with --before SEQ.")]
pub struct DeadList {
    /// Only those that are exhausted, rejected, lapsed, in conflict or cancelled
    #[arg(long, value_name = "REASON", value_parser = words(DeadReason::ALL, DeadReason::as_str))]
    #[arg(hide_possible_values = true)]
    pub reason: Option<DeadReason>,
    /// Those in quarantine instead
    #[arg(long, conflicts_with = "reason")]
    pub quarantined: bool,
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub page: PageArgs,
}

#[derive(Debug, Args)]
#[command(override_usage = "posthouse dead replay [OPTIONS] <ID... | --all | --topic TOPIC | ...>")]
#[command(group(ArgGroup::new("what").required(true).multiple(true)
    .args(["ids", "all", "topic", "tenant", "namespace", "key", "code", "since", "until", "reason"])))]
#[command(after_help = "\
Examples:
  posthouse dead replay 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10 --note 'the address is right now'
  posthouse dead replay --topic order.placed --code http_503 --dry-run
  posthouse dead replay --topic order.placed --code http_503 --yes --rate 50 --note 'it is back'

By filter it needs --dry-run, which changes nothing, or --yes and --note. It stops when their
destination is paused or fails again. Messages that die after it has begun are left for the next
time. It leaves out, and counts, cancelled messages, unless --reason says cancelled, and messages
whose deliver-by has passed, unless --deliver-in gives them a new one or --reason says lapsed.")]
pub struct Replay {
    /// The messages
    #[arg(value_name = "ID", value_parser = message_id)]
    #[arg(conflicts_with_all = ["all", "topic", "tenant", "namespace", "key", "code", "since", "until", "reason", "dry_run", "rate", "limit"])]
    pub ids: Vec<MessageId>,
    /// Every dead message
    #[arg(long)]
    pub all: bool,
    /// Only those that are dead for this reason
    #[arg(long, value_name = "REASON", value_parser = words(DeadReason::ALL, DeadReason::as_str))]
    #[arg(hide_possible_values = true)]
    pub reason: Option<DeadReason>,
    #[command(flatten)]
    pub which: Which,
    /// Those in quarantine instead
    #[arg(long)]
    pub quarantined: bool,
    /// Tell how many and which, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do it without asking
    #[arg(long, short, conflicts_with = "dry_run")]
    pub yes: bool,
    /// At most this many in a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: Option<u32>,
    /// At most this many
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Give them up, unsent, when this has passed
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub deliver_in: Option<Duration>,
    #[command(flatten)]
    pub who: Who,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Relays do this by themselves. It is for a store that no relay works on.

Example:
  posthouse repair")]
pub struct Repair {
    /// At most this many
    #[arg(long, value_name = "N", default_value = "100000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --state it removes messages that are done, and with them dedupe keys whose lifetime is over,
ledger entries past their retention, inbox rows and sagas. Dead letters stay until an operator
decides about them; --state dead removes old ones, cancelled ones included, and nothing else. A dead
letter that blocks its order key, or that holds a saga, stays.

Examples:
  posthouse prune --older-than 30d --dry-run
  posthouse prune --older-than 30d --yes --note 'monthly cleaning'
  posthouse prune --older-than 365d --state dead --yes --note 'a year old, seen by anna'")]
pub struct Prune {
    /// Only those that ended longer than this ago: 12h, 30d
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub older_than: Duration,
    /// Which messages: done, dead or all
    #[arg(long, value_name = "STATE", default_value = "done", value_parser = words(PruneStates::ALL, PruneStates::as_str))]
    #[arg(hide_possible_values = true)]
    pub state: PruneStates,
    /// Tell how many, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do it without asking
    #[arg(long, short, conflicts_with = "dry_run")]
    pub yes: bool,
    #[command(flatten)]
    pub who: Who,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  posthouse audit --actor anna
  posthouse audit --message 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10 --json

With --json, when there may be more, the last line on standard error is
{\"next\":{\"before\":N,\"stopped\":\"limit\"}}: go on with --before N.")]
pub struct Audit {
    /// Only of this message
    #[arg(long, value_name = "ID", value_parser = message_id)]
    pub message: Option<MessageId>,
    /// Only by this actor or worker
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// Only this action, for instance replay
    #[arg(long, value_name = "WORD")]
    pub action: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// Only lines before this number: the next page
    #[arg(long, value_name = "N")]
    pub before: Option<i64>,
}

#[derive(Debug, Subcommand)]
pub enum Ledger {
    /// List entries, by tenant, scope and key
    List(LedgerList),
    /// Show one entry; never the body of its answer
    #[command(after_help = "\
Examples:
  posthouse ledger show orders 7f3a
  posthouse ledger show orders 7f3a --tenant acme --json | jq .status")]
    Show(LedgerShow),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  posthouse ledger list --scope orders --status failed
  posthouse ledger list --status in_flight --json | jq 'select(.message == null)'

With --json, when there may be more, the last line on standard error is
{\"next\":{\"after\":[TENANT,SCOPE,KEY]}}: go on with --after and that list.")]
pub struct LedgerList {
    /// Only of this tenant; empty for nobody's
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Only of this scope
    #[arg(long, value_name = "NAME")]
    pub scope: Option<String>,
    /// Only those that stand so: in_flight, succeeded, failed
    #[arg(long, value_name = "WORD", value_parser = words(Status::ALL, Status::as_str))]
    #[arg(hide_possible_values = true)]
    pub status: Option<Status>,
    /// At most this many
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// Only those after this one: the next page
    #[arg(long, value_name = "LIST", value_parser = entry_key)]
    pub after: Option<EntryKey>,
}

#[derive(Debug, Args)]
pub struct LedgerShow {
    /// What the key is for
    pub scope: String,
    /// The key
    pub key: String,
    /// Whose it is
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub tenant: String,
}

#[derive(Debug, Subcommand)]
pub enum Saga {
    /// List sagas, newest first
    List(SagaList),
    /// Show one: its steps, how they depend on each other, and all that happened
    #[command(after_help = "\
Examples:
  posthouse saga show trip/trip-42
  posthouse saga show 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10 --json | jq '.steps[] | {name, state, compensation}'

Neither its input nor what its steps answered is shown, unless --payload says so.")]
    Show(SagaShow),
    /// Start one by a definition that is written in TOML or JSON, in a transaction of its own
    Start(SagaStart),
    /// Check definitions, and tell what will hurt one day
    #[command(after_help = "\
Example:
  posthouse saga lint sagas/*.toml

Exits with 2 when a definition is not sound, and with 1 when --deny-warnings is given and there are any.")]
    Lint(SagaLint),
    /// Send nothing more for it; what is under way ends
    #[command(after_help = BY_FILTER)]
    Pause(SagaVerb),
    /// Let it go on, after a pause or a quarantine
    #[command(after_help = BY_FILTER)]
    Resume(SagaVerb),
    /// Hold it until somebody decides, with a note
    #[command(after_help = BY_FILTER)]
    Quarantine(SagaVerb),
    /// Send a step, or its compensation, now, with new attempts
    #[command(after_help = "\
Example:
  posthouse saga retry trip/trip-42 hotel --note 'the hotel is back'")]
    Retry(SagaStep),
    /// Go on without a step
    #[command(after_help = "\
Example:
  posthouse saga skip trip/trip-42 newsletter --note 'nobody reads it'")]
    Skip(SagaStep),
    /// State that a step was done, and what it answered
    #[command(after_help = "\
Example:
  posthouse saga complete trip/trip-42 charge --output '\"ch_77\"' --note 'found in the bank statement'")]
    Complete(SagaComplete),
    /// Undo what was done
    #[command(after_help = BY_FILTER)]
    Compensate(SagaCompensate),
    /// State that a compensation was done by hand
    #[command(after_help = "\
Example:
  posthouse saga resolve trip/trip-42 hotel --note 'cancelled by telephone'")]
    Resolve(SagaStep),
    /// Try again what has failed: steps, or compensations
    #[command(after_help = BY_FILTER)]
    Replay(SagaReplay),
    /// Give it up as it is
    #[command(after_help = BY_FILTER)]
    Abandon(SagaVerb),
}

const BY_FILTER: &str = "\
Examples:
  posthouse saga resume trip/trip-42 --note 'the hotel is back'
  posthouse saga replay --name trip --state held --reason retries_exhausted --dry-run
  posthouse saga replay --name trip --state held --reason retries_exhausted --yes --note 'the hotel is back'

By filter it needs --dry-run, which changes nothing, or --yes and --note. Sagas to which the verb does
not apply, or that have moved since they were found, are counted and left.";

/// Which sagas.
#[derive(Debug, Default, Args)]
pub struct WhichSagas {
    /// Only of this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only of this key
    #[arg(long)]
    pub key: Option<String>,
    /// Only of this tenant; '' for those without one
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Only of this namespace
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Only those that are running, compensating, held, completed, compensated or abandoned
    #[arg(long, value_name = "STATE", value_parser = words(SagaState::ALL, SagaState::as_str), hide_possible_values = true)]
    pub state: Option<SagaState>,
    /// Only those that are held for this reason: unknown, retries_exhausted, compensation_failed, ...
    #[arg(long, value_name = "REASON", value_parser = words(HeldReason::ALL, HeldReason::as_str), hide_possible_values = true)]
    pub reason: Option<HeldReason>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  posthouse saga list --state held
  posthouse saga list --name trip --json | jq -r .id

With --json, when there may be more, the last line on standard error is
{\"next\":{\"before\":SEQ,\"stopped\":\"limit\"}}: go on with --before SEQ.")]
pub struct SagaList {
    #[command(flatten)]
    pub which: WhichSagas,
    /// At most this many
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// Only those before this number (seq): the next page
    #[arg(long, value_name = "SEQ")]
    pub before: Option<i64>,
}

#[derive(Debug, Args)]
pub struct SagaShow {
    /// The saga: its id, or NAME/KEY
    #[arg(value_name = "SAGA", value_parser = saga_ref)]
    pub saga: SagaRef,
    /// Show its input and what its steps answered
    #[arg(long)]
    pub payload: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  posthouse saga start trip.toml --key trip-42 --input '{\"city\":\"Rome\"}'
  posthouse saga start trip.json --key trip-42 --input-file trip-42.json --tenant acme

The same key and input again answers the saga that is there; another input is a conflict. An application starts
its sagas in its own transaction: see docs/sagas.md.")]
pub struct SagaStart {
    /// The definition; - for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What the business knows it by
    #[arg(long)]
    pub key: String,
    /// What it is given, as JSON
    #[arg(long, value_name = "JSON", default_value = "null", hide_default_value = true)]
    pub input: String,
    /// The same, from a file
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    pub input_file: Option<PathBuf>,
    /// Whose it is
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub tenant: String,
    /// Which application owns it
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub namespace: String,
}

#[derive(Debug, Args)]
pub struct SagaLint {
    /// The definitions
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Fail when there are warnings
    #[arg(long)]
    pub deny_warnings: bool,
}

/// Sagas by id, or by filter.
#[derive(Debug, Args)]
pub struct Sagas {
    /// The sagas: ids, or NAME/KEY
    #[arg(value_name = "SAGA", value_parser = saga_ref)]
    #[arg(conflicts_with_all = ["name", "key", "tenant", "namespace", "state", "reason", "dry_run"])]
    pub sagas: Vec<SagaRef>,
    #[command(flatten)]
    pub which: WhichSagas,
    /// Tell how many and which, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do it without asking
    #[arg(long, short, conflicts_with = "dry_run")]
    pub yes: bool,
    #[command(flatten)]
    pub who: Who,
}

#[derive(Debug, Args)]
pub struct SagaVerb {
    #[command(flatten)]
    pub sagas: Sagas,
}

#[derive(Debug, Args)]
pub struct SagaCompensate {
    #[command(flatten)]
    pub sagas: Sagas,
    /// Also if the pivot was done, or may have been
    #[arg(long)]
    pub past_pivot: bool,
}

#[derive(Debug, Args)]
pub struct SagaReplay {
    #[command(flatten)]
    pub sagas: Sagas,
    /// Do not go on: undo what was done
    #[arg(long)]
    pub to_compensation: bool,
    /// A saga that was compensated does everything once more, under new keys
    #[arg(long, conflicts_with = "to_compensation")]
    pub again: bool,
}

#[derive(Debug, Args)]
pub struct SagaStep {
    /// The saga: its id, or NAME/KEY
    #[arg(value_name = "SAGA", value_parser = saga_ref)]
    pub saga: SagaRef,
    /// The step
    pub step: String,
    #[command(flatten)]
    pub who: Who,
}

#[derive(Debug, Args)]
pub struct SagaComplete {
    #[command(flatten)]
    pub step: SagaStep,
    /// What it answered, as JSON: what takes it gets it, and what undoes it; null if that is not known
    #[arg(long, value_name = "JSON")]
    pub output: String,
}

/// A saga as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SagaRef {
    Id(SagaId),
    Key { name: String, key: String },
}

fn saga_ref(text: &str) -> Result<SagaRef, String> {
    if let Ok(id) = text.parse() {
        return Ok(SagaRef::Id(id));
    }
    let (name, key) = text.split_once('/').ok_or("is neither an id nor NAME/KEY")?;
    Ok(SagaRef::Key {
        name: name.to_owned(),
        key: key.to_owned(),
    })
}

#[derive(Debug, Subcommand)]
pub enum Destinations {
    /// List the destinations that relays send to, and those that are paused
    #[command(after_help = "\
Example:
  posthouse destinations list --json | jq -r 'select(.breaker != \"closed\").name'")]
    List,
    /// Stop all relays from sending to a destination; its messages wait
    #[command(after_help = "\
Example:
  posthouse destinations pause 'https://shop.example#097d5636' --note 'maintenance until six'

Relays hear of it with their next heartbeat, within 6 seconds; what is being sent is sent.")]
    Pause(Pause),
    /// Let all relays send to a destination again
    #[command(after_help = "\
Example:
  posthouse destinations resume 'https://shop.example#097d5636' --note 'it is back'

Relays hear of it with their next heartbeat, within 6 seconds.")]
    Resume(Switch),
}

#[derive(Debug, Args)]
pub struct Pause {
    #[command(flatten)]
    pub switch: Switch,
    /// Also when no relay that is running tells of a destination of that name
    #[arg(long)]
    pub anyway: bool,
}

#[derive(Debug, Args)]
pub struct Switch {
    /// Its name, as the list tells it
    #[arg(value_name = "NAME")]
    pub destination: String,
    #[command(flatten)]
    pub who: Who,
}

/// The words of one of the core's small vocabularies.
fn words<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    word: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let find = move |text: String| {
        all.iter()
            .copied()
            .find(|v| word(*v) == text)
            .ok_or("is not one of the words")
    };
    PossibleValuesParser::new(all.iter().map(|v| word(*v)).collect::<Vec<_>>()).try_map(find)
}

/// A place in the list of entries.
fn entry_key(text: &str) -> Result<EntryKey, String> {
    let parts: [String; 3] =
        serde_json::from_str(text).map_err(|_| "is not a list as in [\"tenant\",\"scope\",\"key\"]".to_owned())?;
    let [tenant, scope, key] = parts;
    Ok(EntryKey::new(scope, key).tenant(tenant))
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration("duration", text).map_err(problem)
}

fn message_id(text: &str) -> Result<MessageId, String> {
    text.parse().map_err(problem)
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Adds a tip where a note for the audit was given as --reason, which filters.
pub fn with_tip(mut refusal: clap::Error) -> clap::Error {
    let is_reason = matches!(
        refusal.get(ContextKind::InvalidArg),
        Some(ContextValue::String(arg)) if arg.starts_with("--reason")
    );
    if is_reason && matches!(refusal.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidValue) {
        let tip = "--reason filters by the reason of a death or of a hold; the text for the audit is --note";
        refusal.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    refusal
}

/// The parser names the flag itself.
fn problem(invalid: Invalid) -> String {
    invalid.problem
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_colour_flag_is_found_before_parsing() {
        let of = |args: &[&str]| color_of(&args.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&["posthouse", "--color", "never", "--help"]), Color::Never);
        assert_eq!(of(&["posthouse", "--color=always"]), Color::Always);
        assert_eq!(of(&["posthouse", "--color"]), Color::Auto);
    }
}
