//! The configuration: `posthouse.toml`, the environment and flags, as one validated value.
//!
//! [`load`] reads everything and answers with a [`Config`], or with all that is wrong at once. [`watch`](watch::watch) does so again
//! whenever a file changes; [`diff`] says which changes a running relay takes up. `keys.rs` is the list of all keys, `read.rs` the one
//! place that knows who wins: flag, environment, file, default.

mod address;
mod breaker;
mod diff;
mod keys;
mod outbox;
mod problem;
mod process;
mod read;
mod route;
mod secret;
mod show;
mod store;
mod value;
pub mod watch;

#[cfg(test)]
mod tests;

pub use address::{Allowed, Explicit};
pub use breaker::Breaker;
pub use diff::{Change, Changes, diff};
pub use keys::likeness;
pub use outbox::{Outbox, Retention, Tenants};
pub use problem::{Place, Problem};
pub use process::{Admin, Log};
pub use read::{Environment, Setting};
pub use route::{Route, To};
pub use secret::Secret;
pub use show::{document, toml};
pub use store::Store;

use posthouse::StoreSettings;
use problem::Text;
use read::Reader;
use std::{
    collections::BTreeSet,
    io::Read,
    path::{Path, PathBuf},
};
use toml::de::DeTable;
use value::Source;

/// What is in force: sound, and whole. How each key is written is in `docs/configuration.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The databases, at least one.
    pub stores: Vec<Store>,
    /// How a relay works on them.
    pub outbox: Outbox,
    /// How long things are kept.
    pub retention: Retention,
    /// Shares and limits of tenants.
    pub tenants: Tenants,
    /// When destinations that fail are left alone, where their route says nothing.
    pub breaker: Breaker,
    /// Which destinations a topic may name itself.
    pub explicit: Explicit,
    /// Where it answers.
    pub admin: Admin,
    /// What it logs.
    pub log: Log,
    /// Where messages go; the first that matches serves.
    pub routes: Vec<Route>,
}

/// What a configuration is read from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file, if there is one. It must then be there.
    pub file: Option<PathBuf>,
    /// The environment.
    pub environment: Environment,
    /// What `--store` says: a URL, or the name of a store in the file.
    pub store: Option<String>,
}

/// The file that is read when none is named, if it is there.
pub const DEFAULT_FILE: &str = "posthouse.toml";

impl Sources {
    /// Those of this process.
    pub fn of_process(file: Option<&Path>, store: Option<&str>) -> Self {
        let usual = || Some(PathBuf::from(DEFAULT_FILE)).filter(|file| file.exists());
        Self {
            file: file.map(Path::to_owned).or_else(usual),
            environment: Environment::of_process(),
            store: store.map(str::to_owned),
        }
    }

    /// What the file is called.
    fn name(&self) -> String {
        let file = self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
        file.display().to_string()
    }
}

/// A configuration, and what is to be told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// What is in force.
    pub config: Config,
    /// The same key by key, with where each came from.
    pub settings: Vec<Setting>,
    /// What is strange, and not wrong.
    pub warnings: Vec<Problem>,
    /// Every file that was read.
    pub files: Vec<PathBuf>,
}

impl Loaded {
    /// What a store is to hold every producer to: as it does now, but for what somebody has set here. None if nobody has.
    pub fn settings(&self, stored: StoreSettings) -> Option<StoreSettings> {
        let config = &self.config;
        let mut settings = stored;
        let mut changed = false;
        for setting in self.settings.iter().filter(|setting| setting.source != Source::Default) {
            match setting.key.path {
                "outbox.payload_max_bytes" => settings.limits.payload_bytes = config.outbox.limits.payload_bytes,
                "outbox.require_tenant" => settings.limits.require_tenant = config.outbox.limits.require_tenant,
                "outbox.max_attempts" => settings.max_attempts = config.outbox.max_attempts,
                "retention.dedupe_days" => settings.dedupe_lifetime = config.retention.dedupe,
                _ => continue,
            }
            changed = true;
        }
        changed.then_some(settings)
    }
}

/// Why there is no configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Problems {
    /// What is wrong, at least one thing; then what is strange.
    pub all: Vec<Problem>,
    /// What the file is called.
    pub file: String,
    /// Every file that was read, or should have been.
    pub files: Vec<PathBuf>,
}

impl Problems {
    /// How many things are wrong.
    pub fn errors(&self) -> usize {
        self.all.iter().filter(|problem| !problem.warning).count()
    }
}

/// Reads everything, and checks all of it.
pub fn load(sources: &Sources) -> Result<Loaded, Problems> {
    finish(look(sources), |_| true)
}

/// Reads everything for the sake of its stores. What is wrong elsewhere is no reason to keep an operator from a store, and a file is
/// not read at all for one whose URL a flag or the environment tells.
pub fn load_stores(sources: &Sources) -> Result<Vec<Store>, Problems> {
    let told = match &sources.store {
        Some(store) => store.contains(':'),
        None => store::is_in(&sources.environment),
    };
    let mut sources = sources.clone();
    sources.file = sources.file.filter(|_| !told);
    let matters = |problem: &Problem| match problem.key.as_str() {
        "" => matches!(problem.place, Place::At { .. } | Place::File(_)),
        key => key.split('.').next() == Some("store"),
    };
    finish(look(&sources), matters).map(|loaded| loaded.config.stores)
}

/// Everything that was read, sound or not.
struct Look {
    loaded: Loaded,
    problems: Vec<Problem>,
    file: String,
}

fn finish(look: Look, matters: impl Fn(&Problem) -> bool) -> Result<Loaded, Problems> {
    let Look { loaded, problems, file } = look;
    let (warnings, errors): (Vec<_>, Vec<_>) = problems
        .into_iter()
        .filter(matters)
        .partition(|problem| problem.warning);
    if errors.is_empty() {
        return Ok(Loaded { warnings, ..loaded });
    }
    Err(Problems {
        all: errors.into_iter().chain(warnings).collect(),
        file,
        files: loaded.files,
    })
}

/// More than a thousand routes need; a file that is larger is another one.
const MOST_BYTES: u64 = 1 << 20;

fn look(sources: &Sources) -> Look {
    let file = sources.name();
    let refused = |message: String| Look {
        problems: vec![Problem::new(Place::File(file.clone()), "", message)],
        ..read_text("", sources)
    };
    let mut bytes = Vec::new();
    if let Some(path) = &sources.file {
        let read = std::fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return refused(format!("{file} does not exist")),
            Err(e) => return refused(format!("{file} cannot be read: {e}")),
            Ok(_) if bytes.len() as u64 > MOST_BYTES => {
                return refused(format!("{file} has more than {MOST_BYTES} bytes"));
            }
            Ok(_) => {}
        }
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => read_text(text, sources),
        Err(e) => {
            let sound = String::from_utf8_lossy(&bytes[..e.valid_up_to()]);
            let text = Text {
                file: &file,
                content: &sound,
            };
            let place = text.place(&(sound.len()..sound.len()));
            let mut look = refused("is not UTF-8 here".to_owned());
            look.problems[0].place = place;
            look
        }
    }
}

/// Reads a file's text. Never fails: what is wrong is in the answer.
fn read_text(content: &str, sources: &Sources) -> Look {
    let file = sources.name();
    let folder = sources.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
    let text = Text { file: &file, content };
    let (root, errors) = DeTable::parse_recoverable(content);
    let mut reader = Reader::new(text, folder, &sources.environment);
    let root = root.get_ref();
    reader.files.extend(sources.file.clone());
    reader.refuse_strangers(root, "", "");
    let (outbox, breaker) = (Outbox::read(&mut reader, root), Breaker::read(&mut reader, root));
    let config = Config {
        stores: store::read(&mut reader, root, sources),
        retention: Retention::read(&mut reader, root),
        tenants: Tenants::read(&mut reader, root),
        explicit: Explicit::read(&mut reader, root),
        admin: Admin::read(&mut reader, root),
        log: Log::read(&mut reader, root),
        routes: route::read(&mut reader, root, &outbox, &breaker),
        outbox,
        breaker,
    };
    reader.refuse_strange_variables();
    let Reader {
        mut problems,
        settings,
        files,
        ..
    } = reader;
    add_syntax(&mut problems, &errors, text);
    problems.sort_by_key(|problem| problem.line().unwrap_or(usize::MAX));
    let loaded = Loaded {
        config,
        settings,
        warnings: Vec::new(),
        files,
    };
    Look { loaded, problems, file }
}

/// Where the file is no TOML, what was understood of it may mislead: nothing else is said of such lines, of what stands under a
/// heading that is broken, nor of what is missing.
fn add_syntax(problems: &mut Vec<Problem>, errors: &[toml::de::Error], text: Text<'_>) {
    let mut syntax: Vec<_> = errors
        .iter()
        .take(read::MOST_PROBLEMS)
        .map(|error| Problem::new(text.place(&error.span().unwrap_or_default()), "", error.message()))
        .collect();
    syntax.dedup_by_key(|problem| problem.line());
    let broken: BTreeSet<_> = syntax.iter().filter_map(Problem::line).collect();
    let mut misleading = BTreeSet::new();
    let mut under_broken = false;
    for (line, written) in (1..).zip(text.content.lines()) {
        if written.trim_start().starts_with('[') {
            under_broken = broken.contains(&line);
        }
        if under_broken || broken.contains(&line) {
            misleading.insert(line);
        }
    }
    let misleads = |problem: &Problem| problem.missing || problem.line().is_some_and(|line| misleading.contains(&line));
    problems.retain(|problem| broken.is_empty() || !misleads(problem));
    problems.append(&mut syntax);
}
