//! A database: SurrealDB's client, and what is known of where it leads.

use posthouse_core::{Error, Invalid};
use std::{
    collections::BTreeMap,
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use surrealdb::{
    Connection,
    engine::any::{Any, connect},
    method::Transaction,
    opt::{Config, auth},
};

use crate::{
    address::{Address, Engine, Tls, User},
    error::{from_surreal, is_expiry, unavailable},
    tls,
};

/// How long an answer is waited for. A server that has gone away does not always say so.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// How long a folder is waited for that another process has: one that ends lets it go a moment later.
const FOR_FOLDER: Duration = Duration::from_secs(3);
/// How many sessions are kept for the next transactions.
const IDLE: usize = 16;

/// A SurrealDB database, of whatever engine: SurrealDB's client with its namespace and database chosen, and what is known of where it leads. A clone is
/// the same database.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let db = posthouse_surreal::Database::connect("surrealkv://shop.db").await?;
/// db.client().query("CREATE order:42 SET state = 'new'").await?.check()?;
/// # Ok(()) }
/// ```
pub struct Database<C: Connection = Any> {
    inner: Arc<Inner<C>>,
}

struct Inner<C: Connection> {
    client: surrealdb::Surreal<C>,
    address: Address,
    place: String,
    /// The engine of its folder, which is closed when the last one lets it go.
    _folder: Option<Arc<Folder>>,
    /// For tests: what happens before each commit of the store's own transactions.
    before_commit: Option<Hook>,
    /// Sessions whose last transaction is over. A new one costs a server as much as somebody who signs in.
    idle: Mutex<Vec<surrealdb::Surreal<C>>>,
}

/// Something that is done and waited for.
type Hook = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

impl<C: Connection> Clone for Database<C> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl Database<Any> {
    /// Connects to the database that a URL names ([`Address`]), signs in and chooses it. A folder that is not there is made; one that this process
    /// has connected to before is shared.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_to(&Address::parse(url)?).await
    }

    /// The same.
    pub async fn connect_to(address: &Address) -> Result<Self, Error> {
        let mut folder = None;
        let client = match &address.engine {
            Engine::Folder { path, .. } => {
                let shared = open_folder(address, path).await?;
                folder.insert(shared).client.clone()
            }
            Engine::Memory => connect(address.endpoint()).await.map_err(from_surreal)?,
            Engine::Server { user, tls, .. } => {
                let mut config = Config::new();
                if let Some(Tls { authority }) = tls {
                    config = config.rustls(tls::config(authority.as_deref())?);
                }
                let reached = connect((address.endpoint(), config));
                let client = in_time(async { reached.await.map_err(unavailable) }).await?;
                if let Some(user) = user {
                    in_time(sign_in(&client, address, user)).await?;
                }
                client
            }
        };
        let chosen = client.use_ns(&address.namespace).use_db(&address.database);
        in_time(async { chosen.await.map_err(from_surreal) }).await?;
        Ok(Self::with(client, address, folder))
    }
}

impl<C: Connection> Database<C> {
    /// A client that the application has connected itself, to this address, and with which it has chosen its namespace and database.
    pub fn of(client: surrealdb::Surreal<C>, address: &Address) -> Self {
        Self::with(client, address, None)
    }

    fn with(client: surrealdb::Surreal<C>, address: &Address, folder: Option<Arc<Folder>>) -> Self {
        let inner = Inner {
            client,
            place: address.to_string(),
            address: address.clone(),
            _folder: folder,
            before_commit: None,
            idle: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// SurrealDB's client, for whatever else the application does.
    pub fn client(&self) -> &surrealdb::Surreal<C> {
        &self.inner.client
    }

    /// Begins a transaction, with a session of its own.
    ///
    /// It ends by [`commit`](Self::commit) or [`cancel`](Self::cancel); its own verbs of these names do the same, but give its session up, and a server checks
    /// the password for each new one. One that is dropped is cancelled some time later.
    pub async fn begin(&self) -> Result<Transaction<C>, Error> {
        let idle = self.idle().pop();
        let new = || self.inner.client.clone();
        let begun =
            |session: surrealdb::Surreal<C>| in_time(async move { session.begin().await.map_err(from_surreal) });
        match begun(idle.unwrap_or_else(new)).await {
            Err(error) if is_expiry(&error) => {
                self.forget_sessions();
                begun(new()).await
            }
            begun => begun,
        }
    }

    /// Sessions that were kept are not used again: they have become too old. A new one signs in.
    pub(crate) fn forget_sessions(&self) {
        self.idle().clear();
    }

    /// The same database, where this happens before each commit of a store's own transactions: for tests, which come in between.
    #[doc(hidden)]
    pub fn before_commit(
        &self,
        hook: impl Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync + 'static,
    ) -> Self {
        let Inner {
            client,
            address,
            place,
            _folder,
            ..
        } = &*self.inner;
        let inner = Inner {
            client: client.clone(),
            address: address.clone(),
            place: place.clone(),
            _folder: _folder.clone(),
            before_commit: Some(Arc::new(hook)),
            idle: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Commits a transaction, and keeps its session for the next. [`Error::Contention`]: somebody was faster, and nothing of it has happened; run it again.
    pub async fn commit(&self, tx: Transaction<C>) -> Result<(), Error> {
        if let Some(hook) = &self.inner.before_commit {
            hook().await;
        }
        let session = in_time(async { tx.commit().await.map_err(from_surreal) }).await?;
        self.keep(session);
        Ok(())
    }

    /// Cancels a transaction, and keeps its session: nothing of it has happened. If even that cannot be told, the connection is gone, and the transaction with it.
    pub async fn cancel(&self, tx: Transaction<C>) {
        if let Ok(session) = in_time(async { tx.cancel().await.map_err(from_surreal) }).await {
            self.keep(session);
        }
    }

    fn keep(&self, session: surrealdb::Surreal<C>) {
        let mut idle = self.idle();
        if idle.len() < IDLE {
            idle.push(session);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<surrealdb::Surreal<C>>> {
        self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As people may see it, without a password.
    pub(crate) fn place(&self) -> &str {
        &self.inner.place
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.inner.address
    }

    /// Several processes can work on it.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.inner.address.engine, Engine::Server { .. })
    }
}

/// A folder that this process has open. One process can, once at a time; so all of it share this.
struct Folder {
    client: surrealdb::Surreal<Any>,
    endpoint: String,
}

static FOLDERS: tokio::sync::Mutex<BTreeMap<PathBuf, Weak<Folder>>> = tokio::sync::Mutex::const_new(BTreeMap::new());

async fn open_folder(address: &Address, path: &str) -> Result<Arc<Folder>, Error> {
    let mut folders = FOLDERS.lock().await;
    folders.retain(|_, folder| folder.strong_count() > 0);
    let place = std::path::absolute(path).map_err(|problem| cannot(path, &problem))?;
    let place = place.canonicalize().unwrap_or(place);
    let endpoint = address.endpoint();
    if let Some(open) = folders.get(&place).and_then(Weak::upgrade) {
        return match open.endpoint == endpoint {
            true => Ok(open),
            false => Err(Invalid::new(
                "store",
                "is open in this process already, by another path or with another sync",
            )
            .into()),
        };
    }
    let client = wait_for_folder(&endpoint, path).await?;
    let folder = Arc::new(Folder { client, endpoint });
    folders.insert(place, Arc::downgrade(&folder));
    Ok(folder)
}

/// Opens a folder; waits for another process that may be letting it go.
async fn wait_for_folder(endpoint: &str, path: &str) -> Result<surrealdb::Surreal<Any>, Error> {
    let since = tokio::time::Instant::now();
    // Ends: when the time is over.
    loop {
        let problem = match connect(endpoint).await {
            Ok(client) => return Ok(client),
            Err(problem) => problem,
        };
        if !problem.to_string().contains("already locked") {
            return Err(cannot(path, &problem));
        }
        if since.elapsed() > FOR_FOLDER {
            return Err(Error::Unavailable(
                format!(
                    "another process has the folder {path:?} open, and one at a time can: stop it, or let a server have the folder, and use surrealdb://"
                )
                .into(),
            ));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn cannot(path: &str, problem: &dyn std::fmt::Display) -> Error {
    Error::Unavailable(format!("the folder {path:?} cannot be opened: {problem}").into())
}

/// A user is looked for in the database, then in the namespace, then among those of the whole server.
async fn sign_in(client: &surrealdb::Surreal<Any>, address: &Address, user: &User) -> Result<(), Error> {
    let (username, password) = (user.name.clone(), user.password.clone());
    let (namespace, database) = (address.namespace.clone(), address.database.clone());
    let of_database = auth::Database {
        namespace: namespace.clone(),
        database,
        username: username.clone(),
        password: password.clone(),
    };
    if client.signin(of_database).await.is_ok() {
        return Ok(());
    }
    let of_namespace = auth::Namespace {
        namespace,
        username: username.clone(),
        password: password.clone(),
    };
    if client.signin(of_namespace).await.is_ok() {
        return Ok(());
    }
    match client.signin(auth::Root { username, password }).await {
        Ok(_) => Ok(()),
        Err(problem) => match from_surreal(problem) {
            Error::Internal(_) | Error::Denied(_) => Err(Error::Denied(format!(
                "the server knows no user {:?} with this password, neither of the database nor of the namespace nor of its own",
                user.name
            ))),
            other => Err(other),
        },
    }
}

/// Whether there is something in the folder of this address, if it has one: to look is not to make it.
pub(crate) fn is_there(address: &Address) -> bool {
    match &address.engine {
        Engine::Folder { path, .. } => Path::new(path).join("LOCK").exists(),
        Engine::Server { .. } | Engine::Memory => true,
    }
}

/// An answer, or that there was none in time.
pub(crate) async fn in_time<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::Timeout(
            format!("no answer within {} seconds", PATIENCE.as_secs()).into(),
        )),
    }
}
