//! Where a database is, as a URL says. Pure; and careful, because a URL may hold a password, which no error may repeat.

use posthouse_core::{Durability, Invalid};
use std::{borrow::Cow, fmt};
use url::Url;

/// SurrealDB's own names for what nobody has named.
const USUAL: &str = "main";
/// The port of a server that names none.
const PORT: u16 = 8000;
/// How the URLs are written.
const WRITE: &str = "write surrealdb://USER:PASSWORD@HOST/NAMESPACE/DATABASE or surrealkv://FOLDER";

/// Where a database is.
///
/// | URL | database |
/// |---|---|
/// | `surrealdb://user:password@host:8000/shop/orders` | namespace `shop`, database `orders` of that server, over a WebSocket |
/// | `surrealdb://user:password@host/shop/orders?tls=true` | the same, encrypted, and the host proved to be the one named |
/// | `surrealdb://user:password@host/shop/orders?tls=true&sslrootcert=/etc/ca.pem` | the same, by this authority and no other |
/// | `surrealkv://shop.db`, `surrealkv:///var/lib/shop.db` | in that folder, for one process at a time; namespace and database `main` |
/// | `surrealkv://shop.db?namespace=shop&database=orders` | the same, with names |
/// | `surrealkv://shop.db?sync=1s` | written to the disk each second, and not with each commit (`every`, which is the default); or when the system likes to (`never`) |
/// | `mem://` | in this process alone, and gone with it |
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    pub(crate) engine: Engine,
    pub(crate) namespace: String,
    pub(crate) database: String,
}

/// What holds it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Engine {
    Server {
        host: String,
        port: u16,
        tls: Option<Tls>,
        user: Option<User>,
    },
    Folder {
        path: String,
        sync: Sync,
    },
    Memory,
}

/// Whom an encrypted connection trusts.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Tls {
    /// The file of an authority; the system's if there is none.
    pub authority: Option<String>,
}

/// Who asks a server.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub name: String,
    pub password: String,
}

/// When what was committed is written to the disk.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Sync {
    /// With each commit.
    Every,
    /// From time to time; or, with `never`, when the system likes to.
    Later(String),
}

impl Address {
    /// Reads a URL.
    pub fn parse(url: &str) -> Result<Self, Invalid> {
        let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
        match scheme {
            "surrealdb" => server(url),
            "surrealkv" => folder(rest),
            "mem" => named(Engine::Memory, rest.strip_prefix('?').unwrap_or(rest)),
            _ => Err(refused(format!("is no URL of SurrealDB; {WRITE}"))),
        }
    }

    /// What a commit survives there.
    pub fn durability(&self) -> Durability {
        match &self.engine {
            Engine::Memory => Durability::Process,
            Engine::Folder { sync: Sync::Every, .. } => Durability::Machine,
            Engine::Folder { .. } => Durability::System,
            Engine::Server { .. } => Durability::Server,
        }
    }

    /// What holds it, in a word.
    pub(crate) const fn engine_name(&self) -> &'static str {
        match self.engine {
            Engine::Memory => "mem",
            Engine::Folder { .. } => "surrealkv",
            Engine::Server { .. } => "server",
        }
    }

    /// When what was committed is written to the disk, where that is known.
    pub(crate) fn sync(&self) -> Option<&str> {
        match &self.engine {
            Engine::Folder { sync, .. } => Some(sync.word()),
            Engine::Server { .. } | Engine::Memory => None,
        }
    }

    /// As SurrealDB's client takes it.
    pub(crate) fn endpoint(&self) -> String {
        match &self.engine {
            Engine::Memory => "mem://".to_owned(),
            Engine::Folder { path, sync } => format!("surrealkv://{path}?sync={}", sync.word()),
            Engine::Server { host, port, tls, .. } => {
                let scheme = if tls.is_some() { "wss" } else { "ws" };
                format!("{scheme}://{host}:{port}")
            }
        }
    }
}

/// Without its password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, database) = (encoded(&self.namespace), encoded(&self.database));
        let names = match self.namespace == USUAL && self.database == USUAL {
            true => String::new(),
            false => format!("namespace={namespace}&database={database}"),
        };
        let mark = if names.is_empty() { "" } else { "?" };
        match &self.engine {
            Engine::Memory => write!(f, "mem://{mark}{names}"),
            Engine::Folder {
                path,
                sync: Sync::Every,
            } => write!(f, "surrealkv://{path}{mark}{names}"),
            Engine::Folder { path, sync } => {
                let and = if names.is_empty() { "" } else { "&" };
                write!(f, "surrealkv://{path}?{names}{and}sync={}", sync.word())
            }
            Engine::Server { host, port, tls, user } => {
                let user = user.as_ref().map(|user| format!("{}@", encoded(&user.name)));
                let user = user.unwrap_or_default();
                write!(f, "surrealdb://{user}{host}:{port}/{namespace}/{database}")?;
                match tls {
                    None => Ok(()),
                    Some(Tls { authority: None }) => write!(f, "?tls=true"),
                    Some(Tls { authority: Some(file) }) => write!(f, "?tls=true&sslrootcert={file}"),
                }
            }
        }
    }
}

/// The same: a password has no place in a log.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Sync {
    fn word(&self) -> &str {
        match self {
            Self::Every => "every",
            Self::Later(word) => word,
        }
    }
}

fn server(url: &str) -> Result<Address, Invalid> {
    let url = Url::parse(url).map_err(|problem| refused(format!("cannot be read ({problem}); {WRITE}")))?;
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = host
        .ok_or_else(|| refused(format!("names no host; {WRITE}")))?
        .to_owned();
    let user = match (url.username(), url.password()) {
        ("", None) => None,
        ("", Some(_)) => return Err(refused(format!("has a password, and no user; {WRITE}"))),
        (_, None) => return Err(refused(format!("names a user without a password; {WRITE}"))),
        (name, Some(password)) => Some(User {
            name: decoded("the user", name)?,
            password: decoded("the password", password)?,
        }),
    };
    let names: Vec<_> = url.path().split('/').skip(1).collect();
    // What has an @ in it may be a password that is not written as it should be.
    let [namespace, database] = names[..] else {
        return Err(refused(format!("does not name a namespace and a database; {WRITE}")));
    };
    if namespace.contains('@') || database.contains('@') {
        return Err(refused(
            "has an @ behind its host: write %40 for one, and %2F for a / in a password",
        ));
    }
    let (mut encrypted, mut authority) = (false, None);
    for (name, value) in url.query_pairs() {
        match (&*name, &*value) {
            ("tls", "true") => encrypted = true,
            ("tls", "false") => encrypted = false,
            ("tls", _) => return Err(refused("has a tls that is neither true nor false")),
            ("sslrootcert", file) => authority = Some(file.to_owned()),
            // Not repeated: a password that is not written as it should be may look like one.
            _ => return Err(refused("has a parameter that is not known; known: tls, sslrootcert")),
        }
    }
    if authority.is_some() && !encrypted {
        return Err(refused("has an sslrootcert, which goes with tls=true"));
    }
    let tls = encrypted.then_some(Tls { authority });
    let engine = Engine::Server {
        host,
        port: url.port().unwrap_or(PORT),
        tls,
        user,
    };
    Ok(Address {
        engine,
        namespace: name("namespace", &decoded("the namespace", namespace)?)?,
        database: name("database", &decoded("the database", database)?)?,
    })
}

fn folder(rest: &str) -> Result<Address, Invalid> {
    // The URL of a server with the wrong word in front; its password must not become a path, which errors tell.
    if rest.contains('@') && !rest.starts_with(['/', '.']) {
        return Err(refused(
            "names a user as the URL of a server does, which begins with surrealdb://; write ./ in front of a folder that has an @ in its name, and %40 for one behind a ?",
        ));
    }
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err(refused("names no folder; write surrealkv://FOLDER"));
    }
    let engine = Engine::Folder {
        path: path.to_owned(),
        sync: Sync::Every,
    };
    named(engine, query)
}

/// An engine of this process, and what its parameters say.
fn named(mut engine: Engine, query: &str) -> Result<Address, Invalid> {
    let (mut namespace, mut database) = (USUAL.to_owned(), USUAL.to_owned());
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match (&*key, &mut engine) {
            ("namespace", _) => namespace = name("namespace", &value)?,
            ("database", _) => database = name("database", &value)?,
            ("sync", Engine::Folder { sync, .. }) => *sync = synced(&value)?,
            (other, _) => {
                let other = posthouse_core::text::excerpt(other, 32);
                return Err(refused(format!(
                    "has a parameter {other:?} that is not known; known: namespace, database, sync"
                )));
            }
        }
    }
    Ok(Address {
        engine,
        namespace,
        database,
    })
}

fn synced(value: &str) -> Result<Sync, Invalid> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (unit, number) = (&value[digits.len()..], digits.parse::<u64>());
    match (value, unit, number) {
        ("every", ..) => Ok(Sync::Every),
        ("never", ..) => Ok(Sync::Later("never".to_owned())),
        // SurrealDB takes nothing shorter.
        (_, "ms", Ok(101..)) | (_, "s" | "m", Ok(1..)) => Ok(Sync::Later(value.to_owned())),
        _ => Err(refused(
            "has a sync that is none of: every, never, a time of more than 100 ms such as 1s",
        )),
    }
}

fn name(what: &str, name: &str) -> Result<String, Invalid> {
    match name.is_empty() || name.chars().any(char::is_control) {
        true => Err(refused(format!("has an empty {what}, or one with control characters"))),
        false => Ok(name.to_owned()),
    }
}

fn decoded(what: &str, text: &str) -> Result<String, Invalid> {
    let text = percent_encoding::percent_decode_str(text).decode_utf8();
    text.map(Cow::into_owned)
        .map_err(|_| refused(format!("has bytes that are not UTF-8 in {what}")))
}

/// What may stand in a part of a URL as it is.
const PLAIN: percent_encoding::AsciiSet = percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.');

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, &PLAIN).to_string()
}

fn refused(problem: impl Into<String>) -> Invalid {
    Invalid::new("store", problem)
}
