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
    types::ErrorDetails,
};

use crate::{
    address::{Address, Engine, Tls, User},
    error::{TOO_MANY_SESSIONS, from_commit, from_surreal, unavailable},
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
    /// What new sessions are made from: the client, or another one that came after it.
    source: Mutex<Source<C>>,
    /// Connects anew, where we have connected.
    connect: Option<Reach<C>>,
    /// One at a time connects anew.
    connecting: tokio::sync::Mutex<()>,
    address: Address,
    place: String,
    /// The engine of its folder, which is closed when the last one lets it go.
    _folder: Option<Arc<Folder>>,
    /// For tests: what happens before each commit of the store's own transactions.
    before_commit: Option<Hook>,
    /// Sessions whose last transaction is over. A new one costs a server as much as somebody who signs in.
    idle: Mutex<Vec<surrealdb::Surreal<C>>>,
}

struct Source<C: Connection> {
    client: surrealdb::Surreal<C>,
    /// How many there were before it.
    age: u64,
}

/// How a server is reached.
type Reach<C> =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<surrealdb::Surreal<C>, Error>> + Send>> + Send + Sync>;

/// Something that is done and waited for.
type Hook = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

impl<C: Connection> Inner<C> {
    fn new(
        client: surrealdb::Surreal<C>,
        address: &Address,
        folder: Option<Arc<Folder>>,
        connect: Option<Reach<C>>,
    ) -> Self {
        let source = Source {
            client: client.clone(),
            age: 0,
        };
        Self {
            client,
            source: Mutex::new(source),
            connect,
            connecting: tokio::sync::Mutex::default(),
            place: address.to_string(),
            address: address.clone(),
            _folder: folder,
            before_commit: None,
            idle: Mutex::default(),
        }
    }
}

impl<C: Connection> From<Inner<C>> for Database<C> {
    fn from(inner: Inner<C>) -> Self {
        Self { inner: Arc::new(inner) }
    }
}

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
        match &address.engine {
            Engine::Folder { path, .. } => {
                let folder = open_folder(address, path).await?;
                let client = folder.client.clone();
                choose(&client, address).await?;
                Ok(Inner::new(client, address, Some(folder), None).into())
            }
            Engine::Memory => {
                let client = connect(address.endpoint()).await.map_err(from_surreal)?;
                choose(&client, address).await?;
                Ok(Inner::new(client, address, None, None).into())
            }
            Engine::Server { .. } => {
                let own = address.clone();
                let again: Reach<Any> = Arc::new(move || {
                    let address = own.clone();
                    Box::pin(async move { reach(&address).await })
                });
                Ok(Inner::new(reach(address).await?, address, None, Some(again)).into())
            }
        }
    }
}

/// Connects to a server, signs in and chooses the database, all of it in time.
async fn reach(address: &Address) -> Result<surrealdb::Surreal<Any>, Error> {
    match tokio::time::timeout(PATIENCE, let_in(address)).await {
        Ok(client) => client,
        Err(_) => {
            let text = format!(
                "{} did not finish a connection within {} seconds; check the host and the port, that SurrealDB answers there, and that no firewall drops the packets",
                address.endpoint(),
                PATIENCE.as_secs()
            );
            Err(Error::Timeout(text.into()))
        }
    }
}

async fn let_in(address: &Address) -> Result<surrealdb::Surreal<Any>, Error> {
    let mut config = Config::new();
    if let Engine::Server {
        tls: Some(Tls { authority }),
        ..
    } = &address.engine
    {
        config = config.rustls(tls::config(authority.as_deref())?);
    }
    let client = connect((address.endpoint(), config)).await.map_err(unavailable)?;
    if let Engine::Server { user: Some(user), .. } = &address.engine {
        sign_in(&client, address, user).await?;
    }
    choose(&client, address).await?;
    Ok(client)
}

async fn choose(client: &surrealdb::Surreal<Any>, address: &Address) -> Result<(), Error> {
    let chosen = client.use_ns(&address.namespace).use_db(&address.database);
    in_time(async { chosen.await.map_err(from_surreal) }).await?;
    Ok(())
}

impl<C: Connection> Database<C> {
    /// A client that the application has connected itself, to this address, and with which it has chosen its namespace and database.
    pub fn of(client: surrealdb::Surreal<C>, address: &Address) -> Self {
        Inner::new(client, address, None, None).into()
    }

    /// SurrealDB's client, for whatever else the application does. It connects again by itself when a server comes back; but where the server does not know
    /// its user at that moment, this client stays without one, and the application has to connect anew. The store does so by itself.
    pub fn client(&self) -> &surrealdb::Surreal<C> {
        &self.inner.client
    }

    /// Begins a transaction, with a session of its own.
    ///
    /// It ends by [`commit`](Self::commit) or [`cancel`](Self::cancel); its own verbs of these names do the same, but give its session up, and a server checks
    /// the password for each new one. One that is dropped is cancelled some time later.
    pub async fn begin(&self) -> Result<Transaction<C>, Error> {
        let kept = self.idle().pop();
        if let Some(kept) = kept {
            match begun(kept).await {
                Err(error) if is_spent(&error) => self.forget_sessions(),
                answer => return answer.map_err(told),
            }
        }
        let (session, age) = self.session();
        match (begun(session).await, &self.inner.connect) {
            (Err(error), Some(connect)) if is_spent(&error) => {
                self.connect_anew(age, connect).await?;
                begun(self.session().0).await.map_err(told)
            }
            (answer, _) => answer.map_err(told),
        }
    }

    /// A new session, and the age of what it is made from.
    fn session(&self) -> (surrealdb::Surreal<C>, u64) {
        let source = self.source();
        (source.client.clone(), source.age)
    }

    /// A client with a connection of its own where we have connected; else another session.
    pub(crate) async fn apart(&self) -> Result<surrealdb::Surreal<C>, Error> {
        match &self.inner.connect {
            Some(connect) => connect().await,
            None => Ok(self.session().0),
        }
    }

    /// A client whose sessions are refused is never let in again, whatever the server would say now: another one takes its place.
    async fn connect_anew(&self, age: u64, connect: &Reach<C>) -> Result<(), Error> {
        let _one_at_a_time = self.inner.connecting.lock().await;
        if self.source().age == age {
            let client = connect().await?;
            *self.source() = Source { client, age: age + 1 };
            self.forget_sessions();
        }
        Ok(())
    }

    fn source(&self) -> std::sync::MutexGuard<'_, Source<C>> {
        self.inner.source.lock().unwrap_or_else(PoisonError::into_inner)
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
            _folder,
            connect,
            ..
        } = &*self.inner;
        let same = Inner::new(client.clone(), address, _folder.clone(), connect.clone());
        let before_commit: Option<Hook> = Some(Arc::new(hook));
        Inner { before_commit, ..same }.into()
    }

    /// Commits a transaction that [`begin`](Self::begin) of this database has begun, and keeps its session for the next: with one of another client, what comes next would be
    /// done there. [`Error::Contention`]: somebody was faster, and nothing of it has happened; run it again. [`Error::Timeout`]:
    /// whether it was committed is not known.
    pub async fn commit(&self, tx: Transaction<C>) -> Result<(), Error> {
        if let Some(hook) = &self.inner.before_commit {
            hook().await;
        }
        let session = in_time(async { tx.commit().await.map_err(from_commit) }).await?;
        self.keep(session);
        Ok(())
    }

    /// Cancels a transaction of this database, and keeps its session: nothing of it has happened. If even that cannot be told, the connection is gone, and the transaction with it.
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
    // Of a folder that was made just now it is not known before where links lead.
    let place = place.canonicalize().unwrap_or(place);
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

/// Begins a transaction of this session, if it answers in time.
async fn begun<C: Connection>(session: surrealdb::Surreal<C>) -> Result<Transaction<C>, Option<surrealdb::Error>> {
    match tokio::time::timeout(PATIENCE, session.begin()).await {
        Ok(begun) => begun.map_err(Some),
        Err(_) => Err(None),
    }
}

/// Whether a session is of no use any more, and another may be: it has become too old, or was not let in when its connection was made anew. What is
/// wrong with the connection itself, or with how many sessions it has, is no reason.
fn is_spent(error: &Option<surrealdb::Error>) -> bool {
    error.as_ref().is_some_and(|error| {
        let of_connection = matches!(error.details(), ErrorDetails::Connection(_));
        !of_connection && !error.to_string().contains(TOO_MANY_SESSIONS)
    })
}

fn told(error: Option<surrealdb::Error>) -> Error {
    error.map_or_else(no_answer, from_surreal)
}

fn no_answer() -> Error {
    Error::Timeout(format!("no answer within {} seconds", PATIENCE.as_secs()).into())
}

/// An answer, or that there was none in time.
pub(crate) async fn in_time<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(no_answer()),
    }
}
