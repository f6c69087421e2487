//! How a command ends: an exit code that scripts can rely on, and for people what went wrong and what to do next.

use posthouse::{
    Code, Error, Invalid, State,
    schema::{MIGRATE, UPGRADE},
};
use std::{io, process::ExitCode};

use crate::config::{Place, Problem, Problems};

/// The exit codes. They are part of the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// It was done.
    Ok = 0,
    /// It was not done.
    Failed = 1,
    /// What was asked makes no sense; nothing was tried.
    Usage = 2,
    /// What was asked for is not there.
    NotFound = 3,
    /// Something else has its place: a dedupe key, an id, a state, a lease.
    Conflict = 4,
    /// The store cannot be reached, or is too busy; the same command may succeed later.
    Unavailable = 5,
    /// Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not do what was asked.
#[derive(Debug)]
pub struct Failure {
    /// How the process ends.
    pub exit: Exit,
    /// The stable code for programs.
    pub code: &'static str,
    /// What went wrong.
    pub message: String,
    /// The next step, where there is one.
    pub help: Option<String>,
    /// Whether the same command may succeed later.
    pub retryable: bool,
    /// What is wrong with the configuration, one by one.
    pub problems: Vec<Problem>,
}

impl Failure {
    /// A failure that no other kind describes.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Failed,
            code: Code::Internal.as_str(),
            message: message.into(),
            help: None,
            retryable: false,
            problems: Vec::new(),
        }
    }

    /// Something in bulk was asked for without a word that says it is meant; nothing was changed.
    pub fn not_confirmed(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Usage,
            code: Code::ValidationFailed.as_str(),
            ..Self::new(message)
        }
    }

    /// What was asked for is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::NotFound,
            code: Code::NotFound.as_str(),
            ..Self::new(message)
        }
    }

    /// A destination is not there for now: the same command may do the rest later.
    pub fn stopped(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Unavailable,
            code: Code::Unavailable.as_str(),
            retryable: true,
            ..Self::new(message)
        }
    }

    /// The arguments were refused by the parser.
    pub fn usage(refusal: &clap::Error) -> Self {
        let text = refusal.render().to_string();
        // The first paragraph; after it come the usage and tips, which are for people.
        let lines: Vec<_> = text
            .lines()
            .take_while(|line| !line.is_empty())
            .map(str::trim)
            .collect();
        Invalid::new("arguments", lines.join(" ").trim_start_matches("error: ")).into()
    }

    /// Somebody pressed Ctrl-C.
    pub fn interrupted() -> Self {
        Self {
            exit: Exit::Interrupted,
            ..Self::new("interrupted")
        }
    }

    /// The reader of standard output went away (`| head`): it has what it wanted, and nothing failed.
    pub fn reader_gone() -> Self {
        Self {
            exit: Exit::Ok,
            ..Self::new("the reader of standard output went away")
        }
    }

    /// With this as the next step.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.code() {
            Code::ValidationFailed => Exit::Usage,
            Code::NotFound => Exit::NotFound,
            Code::Conflict | Code::LeaseLost | Code::IdempotentLastFailed => Exit::Conflict,
            Code::IdempotentBusy | Code::Contention | Code::Timeout | Code::Unavailable => Exit::Unavailable,
            Code::SchemaMismatch | Code::Denied | Code::Internal => Exit::Failed,
        };
        let (message, help) = next_step(&error);
        Self {
            exit,
            code: error.code().as_str(),
            message,
            help,
            retryable: error.retryable(),
            problems: Vec::new(),
        }
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        let code = Code::ValidationFailed.as_str();
        let (message, help, problems) = match problems.all.as_slice() {
            // One that has no place in a file is told like any other input.
            [one] if !matches!(one.place, Place::At { .. }) => {
                let (message, help) = one.in_a_line();
                (message, help, Vec::new())
            }
            all => {
                let n = problems.errors();
                let message = format!("{}: {n} problem{}", problems.file, if n == 1 { "" } else { "s" });
                (message, None, all.to_vec())
            }
        };
        Self {
            exit: Exit::Usage,
            code,
            help,
            problems,
            ..Self::new(message)
        }
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Self {
        Error::Invalid(invalid).into()
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// What to say, and what to do about it.
fn next_step(error: &Error) -> (String, Option<String>) {
    let text = error.to_string();
    let help = match error {
        Error::Invalid(invalid) => flag_of(invalid.field).map(|flag| format!("given by {flag}")),
        Error::DedupeConflict { key: "id", existing } => Some(format!(
            "an id is for one message; look at the other: posthouse messages show {existing}"
        )),
        Error::DedupeConflict { existing, .. } => Some(format!(
            "choose another --dedupe, or accept the other with --keep; look at it: posthouse messages show {existing}"
        )),
        Error::IllegalState { id, state, .. } => Some(match state {
            State::Leased => format!(
                "wait until it has ended, or ask who holds it: posthouse messages explain {id} (posthouse repair takes back what ran out)"
            ),
            _ => format!("see what happened to it: posthouse messages show {id}"),
        }),
        Error::NotFound(_) => Some("see what there is: posthouse messages list".to_owned()),
        Error::NoSaga(_) => Some("see what there is: posthouse saga list".to_owned()),
        Error::SagaMismatch(id) => Some(format!("a key is for one input; look at the other: posthouse saga show {id}")),
        Error::SagaRefused { id, .. } => Some(format!("see how it stands: posthouse saga show {id}")),
        Error::OfSaga { saga, .. } => {
            let (text, _) = text.split_once("; see").unwrap_or((&text, ""));
            let help = format!("its saga decides about it: posthouse saga show {saga}, and the verbs of posthouse saga");
            return (text.to_owned(), Some(help));
        }
        Error::Contention(_) => Some("the database is busy; try again".to_owned()),
        Error::Unavailable(source) if is_read_only(&source.to_string()) => {
            return (
                format!("the store cannot be written, not even to look at it: {source}"),
                Some(READ_ONLY.to_owned()),
            );
        }
        Error::Unavailable(source) if source.to_string().contains("read-only transaction") => {
            let help = "it is a standby, or set to be read only: name the primary in --store (or POSTHOUSE_STORE__URL, or the configuration)";
            return (format!("the store cannot be written: {source}"), Some(help.to_owned()));
        }
        Error::Timeout(_) | Error::Unavailable(_) => {
            Some("check --store (or POSTHOUSE_STORE__URL, or the configuration), and that it is up and lets you in".to_owned())
        }
        Error::Denied(_) => {
            Some("connect as somebody who may; on PostgreSQL the owner of the schema grants roles (posthouse migrate --roles, docs/sql.md), on SurrealDB the owner of the database defines users (docs/surrealdb.md)".to_owned())
        }
        // The stores end such a text with what to do; here that has a line of its own.
        Error::Schema(_) => {
            let steps = [
                (MIGRATE, " with the same --store"),
                (UPGRADE, " (posthouse --version tells which it is)"),
            ];
            let said = |(step, more): &(&str, &str)| {
                let problem = text.strip_suffix(step)?.strip_suffix("; ")?;
                Some((problem.to_owned(), Some(format!("{step}{more}"))))
            };
            return steps.iter().find_map(said).unwrap_or((text, None));
        }
        _ => None,
    };
    (text, help)
}

/// What to do about a file that we may only read. SQLite's log lies beside it, and readers write there too.
const READ_ONLY: &str = "let this user write the SQLite file and its folder (its owner, its permissions, a mount that is read-only), or look at a copy of it";

/// Whether it is SQLite's word for a file, or a folder, that is there and may not be written.
fn is_read_only(text: &str) -> bool {
    text.contains("readonly database")
}

/// The flag that sets a field, where the two have different names.
fn flag_of(field: &str) -> Option<&'static str> {
    match field {
        "order_key" => Some("--key"),
        "dedupe_key" => Some("--dedupe"),
        "headers" => Some("--header"),
        "store" => Some("--store, POSTHOUSE_STORE__URL or the configuration"),
        "schema" => Some("?schema= in --store, POSTHOUSE_STORE__URL or the configuration"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is there, so "cannot be reached" would send people looking in the wrong place. SQLite itself is asked for its words:
    /// permissions do not bind a superuser, so that no file of a test would do.
    #[test]
    fn a_store_that_may_only_be_read_is_called_that() {
        let db = rusqlite::Connection::open_in_memory().expect("memory");
        db.pragma_update(None, "query_only", true).expect("a pragma");
        let said = db.execute_batch("CREATE TABLE t (n)").expect_err("it may only be read");
        let failure = Failure::from(Error::Unavailable(format!("shop.db: {said}").into()));
        assert_eq!(
            (failure.exit, failure.code),
            (Exit::Unavailable, Code::Unavailable.as_str())
        );
        assert!(
            failure
                .message
                .starts_with("the store cannot be written, not even to look at it: shop.db")
        );
        assert!(failure.help.is_some_and(|help| help.contains("its folder")));
        let away = Failure::from(Error::Unavailable("connection refused".into()));
        assert!(away.message.contains("cannot be reached"), "{}", away.message);
    }
}
