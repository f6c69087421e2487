//! A store that is chosen at run time, by its URL: for tools and for configuration.

use posthouse_core::{
    Admin, Enqueued, Error, Message, RolePlan, Store, StoreSettings, Upgrade,
    condition::Condition,
    saga::{Start, Started},
};
#[cfg(feature = "postgres")]
use posthouse_postgres::{Options, Postgres, Schema};
#[cfg(feature = "sqlite")]
use posthouse_sqlite::Sqlite;
#[cfg(feature = "surreal")]
use posthouse_surreal::{Database, SurrealDb};
use std::sync::Arc;

use crate::url::StoreUrl;

/// Any store that this build knows.
///
/// | URL | store |
/// |---|---|
/// | `sqlite://shop.db`, `sqlite:///var/lib/shop.db` | that SQLite file; the path is taken as it is written |
/// | `postgres://user@host/database` | that PostgreSQL database, schema `posthouse` |
/// | `postgres://user@host/database?schema=shop` | the same, schema `shop` |
/// | `postgres://user@host/database?sslmode=verify-full&sslrootcert=/etc/ca.pem` | the same, encrypted (feature `tls`), and the host proved to be the one named |
/// | `surrealdb://user:password@host/namespace/database` | that database of a SurrealDB server (feature `surreal`) |
/// | `surrealkv://shop.db` | a SurrealDB database in that folder, which one process at a time can open (feature `surreal`) |
///
/// ```no_run
/// # use posthouse::{AnyStore, Filter};
/// # async fn example() -> Result<(), posthouse::Error> {
/// AnyStore::migrate("sqlite://shop.db").await?;
/// let any = AnyStore::open("sqlite://shop.db").await?;
/// let newest = any.admin().list(&Filter::default()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum AnyStore {
    /// A PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres(Arc<Postgres>),
    /// A SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(Arc<Sqlite>),
    /// A SurrealDB database.
    #[cfg(feature = "surreal")]
    Surreal(Arc<SurrealDb>),
}

impl AnyStore {
    /// Opens the store that this URL names. Its schema must be up to date; the error says what to do when it is not.
    pub async fn open(url: &str) -> Result<Self, Error> {
        Self::open_past_pooler(url, None).await
    }

    /// The same, with a URL of the server itself to be woken by, when the other one goes through a pooler in transaction mode. A SQLite
    /// file has no use for it.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_variables, reason = "only PostgreSQL has poolers")
    )]
    pub async fn open_past_pooler(url: &str, direct: Option<&str>) -> Result<Self, Error> {
        match StoreUrl::parse(url)? {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres { url, schema } => {
                let mut options = options(schema)?;
                options.listen = direct.map(str::to_owned);
                let store = Postgres::connect_with(&url, options).await?;
                Ok(Self::Postgres(Arc::new(store)))
            }
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite { path } => Ok(Self::Sqlite(Arc::new(blocking(|| Sqlite::open(path)).await?))),
            #[cfg(feature = "surreal")]
            StoreUrl::Surreal { url } => {
                let store = SurrealDb::connect(&url, posthouse_surreal::Options::default()).await?;
                Ok(Self::Surreal(Arc::new(store)))
            }
            #[cfg(not(all(feature = "postgres", feature = "sqlite", feature = "surreal")))]
            other => Err(not_built(&other)),
        }
    }

    /// Refuses a URL that names no store, without looking whether there is one.
    pub fn check_url(url: &str) -> Result<(), Error> {
        StoreUrl::parse(url).map(drop)
    }

    /// A URL as people may see it: without its password.
    pub fn shown_url(url: &str) -> String {
        crate::url::without_secrets(url)
    }

    /// Makes the schema in the store that this URL names, or brings it up to date. Creates a SQLite file that is not
    /// there. Answers what it did.
    pub async fn migrate(url: &str) -> Result<Upgrade, Error> {
        Self::migrate_reporting(url, &|_| {}).await
    }

    /// The same, and reports each wait as it begins: on PostgreSQL for another migrator, or for locks that other sessions hold.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_variables, reason = "only PostgreSQL's migration reports its waits")
    )]
    pub async fn migrate_reporting(url: &str, report: &(dyn Fn(&str) + Send + Sync)) -> Result<Upgrade, Error> {
        match StoreUrl::parse(url)? {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres { url, schema } => {
                Postgres::open(&url, options(schema)?)?.migrate_reporting(report).await
            }
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite { path } => blocking(|| Sqlite::migrate(path)).await,
            #[cfg(feature = "surreal")]
            StoreUrl::Surreal { url } => SurrealDb::migrate(&Database::connect(&url).await?).await,
            #[cfg(not(all(feature = "postgres", feature = "sqlite", feature = "surreal")))]
            other => Err(not_built(&other)),
        }
    }

    /// What [`migrate`](Self::migrate) would do. Changes nothing, and creates no file.
    pub async fn plan_migration(url: &str) -> Result<Upgrade, Error> {
        match StoreUrl::parse(url)? {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres { url, schema } => Postgres::open(&url, options(schema)?)?.plan_migration().await,
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite { path } => blocking(|| Sqlite::plan_migration(path)).await,
            #[cfg(feature = "surreal")]
            StoreUrl::Surreal { url } => SurrealDb::plan_migration(&url).await,
            #[cfg(not(all(feature = "postgres", feature = "sqlite", feature = "surreal")))]
            other => Err(not_built(&other)),
        }
    }

    /// Makes the roles of the schema, or brings their rights up to date, and answers their names. PostgreSQL only.
    pub async fn make_roles(url: &str) -> Result<Vec<String>, Error> {
        Self::make_roles_reporting(url, &|_| {}).await
    }

    /// The same, and reports each wait as it begins.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_variables, reason = "only PostgreSQL has roles")
    )]
    pub async fn make_roles_reporting(url: &str, report: &(dyn Fn(&str) + Send + Sync)) -> Result<Vec<String>, Error> {
        match StoreUrl::parse(url)? {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres { url, schema } => {
                Postgres::open(&url, options(schema)?)?
                    .make_roles_reporting(report)
                    .await
            }
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite { .. } => Err(no_roles("a SQLite file has none; its permissions are the file's")),
            #[cfg(feature = "surreal")]
            StoreUrl::Surreal { .. } => Err(no_roles(
                "Posthouse makes none on SurrealDB; who may read and write a database is for DEFINE USER to say",
            )),
            #[cfg(not(all(feature = "postgres", feature = "sqlite", feature = "surreal")))]
            other => Err(not_built(&other)),
        }
    }

    /// What [`make_roles`](Self::make_roles) would make and grant. Changes nothing, and needs no schema yet.
    pub async fn plan_roles(url: &str) -> Result<Vec<RolePlan>, Error> {
        match StoreUrl::parse(url)? {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres { url, schema } => Postgres::open(&url, options(schema)?)?.plan_roles().await,
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite { .. } => Err(no_roles("a SQLite file has none; its permissions are the file's")),
            #[cfg(feature = "surreal")]
            StoreUrl::Surreal { .. } => Err(no_roles(
                "Posthouse makes none on SurrealDB; who may read and write a database is for DEFINE USER to say",
            )),
            #[cfg(not(all(feature = "postgres", feature = "sqlite", feature = "surreal")))]
            other => Err(not_built(&other)),
        }
    }

    /// The relay's side of it.
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.clone(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.clone(),
            #[cfg(feature = "surreal")]
            Self::Surreal(store) => store.clone(),
        }
    }

    /// The operator's side of it.
    pub fn admin(&self) -> Arc<dyn Admin> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.clone(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.clone(),
            #[cfg(feature = "surreal")]
            Self::Surreal(store) => store.clone(),
        }
    }

    /// Writes what every producer is held to from now on, in whatever language. On PostgreSQL that takes the rights of the schema's
    /// owner.
    pub async fn configure(&self, settings: &StoreSettings) -> Result<(), Error> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.configure(settings).await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.configure(settings).await,
            #[cfg(feature = "surreal")]
            Self::Surreal(store) => store.configure(settings).await,
        }
    }

    /// What every producer is held to; the usual where nobody has said anything else. On PostgreSQL for the schema's owner.
    pub async fn settings(&self) -> Result<StoreSettings, Error> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.settings().await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => Ok(store.settings().await?.unwrap_or_default()),
            #[cfg(feature = "surreal")]
            Self::Surreal(store) => Ok(store.settings().await?.unwrap_or_default()),
        }
    }

    /// How the database itself is: for those who look after it.
    pub async fn condition(&self) -> Result<Condition, Error> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.condition().await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.condition().await,
            #[cfg(feature = "surreal")]
            Self::Surreal(store) => store.condition().await,
        }
    }

    /// Enqueues in a transaction of its own, all or none: for tools. An application that has a change to commit with its
    /// messages uses the outbox of its database instead.
    pub async fn enqueue(&self, messages: Vec<Message>) -> Result<Vec<Enqueued>, Error> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.enqueue_now(messages).await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.enqueue_now(messages).await,
            #[cfg(feature = "surreal")]
            Self::Surreal(store) => store.enqueue_now(messages).await,
        }
    }

    /// Starts a saga in a transaction of its own: for tools. An application uses the outbox of its database instead.
    pub async fn start(&self, start: Start) -> Result<Started, Error> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(store) => store.start_now(start).await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(store) => store.start_now(start).await,
            #[cfg(feature = "surreal")]
            Self::Surreal(store) => store.start_now(start).await,
        }
    }
}

#[cfg(feature = "postgres")]
fn options(schema: Option<String>) -> Result<Options, Error> {
    let schema = schema.map_or_else(|| Ok(Schema::default()), |name| Schema::new(&name))?;
    Ok(Options {
        schema,
        // The store itself says how much is too much.
        limits: posthouse_core::Limits {
            payload_bytes: posthouse_core::Limits::HARD_PAYLOAD_BYTES,
            ..posthouse_core::Limits::default()
        },
        ..Options::default()
    })
}

#[cfg(any(feature = "sqlite", feature = "surreal"))]
fn no_roles(why: &str) -> Error {
    posthouse_core::Invalid::new("roles", why).into()
}

/// Opening a file waits for the disk, and for whoever has the file; not on the runtime's own thread.
#[cfg(feature = "sqlite")]
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Error::Internal(e.into()))?
}

#[cfg(not(all(feature = "postgres", feature = "sqlite", feature = "surreal")))]
fn not_built(url: &StoreUrl) -> Error {
    let feature = match url {
        StoreUrl::Postgres { .. } => "postgres",
        StoreUrl::Sqlite { .. } => "sqlite",
        StoreUrl::Surreal { .. } => "surreal",
    };
    posthouse_core::Invalid::new(
        "store",
        format!("this program was built without the feature {feature:?}: build it with --features {feature}"),
    )
    .into()
}
