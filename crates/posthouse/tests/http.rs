//! Requests that are done once, over real connections, on both databases.

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Response, StatusCode},
    routing::{get, post},
};
use posthouse::{
    AnyStore, Error, Filter, Message,
    idempotency::{Hold, Idempotency, by_authorization, response},
    ledger::{Answer, EntryFilter, Ledger},
    postgres, sqlite,
};
use sqlx::{PgPool, SqlitePool, postgres::PgConnectOptions, sqlite::SqliteConnectOptions};
use std::{
    env,
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::Notify,
};

use crate::transactional::SECOND;

/// Tells a child which database to work on, and where to stop.
const DATABASE: &str = "POSTHOUSE_TEST_HTTP_DATABASE";
const STOP_AT: &str = "POSTHOUSE_TEST_HTTP_STOP_AT";

/// A shop on its database: an order is a row and a message, with the record of its request.
#[derive(Clone)]
struct Shop {
    store: AnyStore,
    at: At,
    /// Where it stops, for good.
    stop_at: Option<String>,
    executions: Arc<AtomicUsize>,
    /// Who waits here goes on when it is told.
    gate: Arc<Notify>,
    _folder: Option<Arc<tempfile::TempDir>>,
}

#[derive(Clone)]
enum At {
    Postgres(PgPool, postgres::Schema),
    Sqlite(SqlitePool, PathBuf),
}

impl Shop {
    async fn on_postgres() -> Self {
        let server = env::var("POSTHOUSE_TEST_POSTGRES")
            .expect("POSTHOUSE_TEST_POSTGRES is not set; run ./test.sh, which starts a private server");
        let url = format!("{server}?schema=h_{}", uuid::Uuid::new_v4().simple());
        Self::make(&url, None).await
    }

    async fn on_sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("shop.db").display());
        Self::make(&url, Some(Arc::new(folder))).await
    }

    async fn make(url: &str, folder: Option<Arc<tempfile::TempDir>>) -> Self {
        AnyStore::migrate(url).await.unwrap();
        let shop = Self::open(url, folder).await;
        match &shop.at {
            At::Postgres(pool, schema) => {
                let sql = format!("CREATE TABLE {schema}.orders (body text NOT NULL)");
                sqlx::query(sqlx::AssertSqlSafe(sql)).execute(pool).await.unwrap();
            }
            At::Sqlite(pool, _) => {
                let sql = "CREATE TABLE orders (body TEXT NOT NULL)";
                sqlx::query(sql).execute(pool).await.unwrap();
            }
        }
        shop
    }

    async fn open(url: &str, folder: Option<Arc<tempfile::TempDir>>) -> Self {
        let at = match url.split_once("?schema=") {
            Some((server, schema)) => {
                let options = PgConnectOptions::from_str(server).unwrap();
                let pool = PgPool::connect_with(options).await.unwrap();
                At::Postgres(pool, postgres::Schema::new(schema).unwrap())
            }
            None => {
                let path = Path::new(url.trim_start_matches("sqlite://"));
                let options = SqliteConnectOptions::new().filename(path).busy_timeout(30 * SECOND);
                At::Sqlite(SqlitePool::connect_with(options).await.unwrap(), path.to_owned())
            }
        };
        Self {
            store: AnyStore::open(url).await.unwrap(),
            at,
            stop_at: env::var(STOP_AT).ok(),
            executions: Arc::default(),
            gate: Arc::default(),
            _folder: folder,
        }
    }

    fn url(&self) -> String {
        match &self.at {
            At::Postgres(_, schema) => {
                format!("{}?schema={schema}", env::var("POSTHOUSE_TEST_POSTGRES").unwrap())
            }
            At::Sqlite(_, path) => format!("sqlite://{}", path.display()),
        }
    }

    /// Comes to a point, and stays there if it is to.
    async fn comes_to(&self, point: &str) {
        if self.stop_at.as_deref() == Some(point) {
            tell(&format!("at {point}"));
            std::future::pending().await
        }
    }

    async fn orders(&self) -> i64 {
        match &self.at {
            At::Postgres(pool, schema) => {
                let sql = format!("SELECT count(*) FROM {schema}.orders");
                sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                    .fetch_one(pool)
                    .await
                    .unwrap()
            }
            At::Sqlite(pool, _) => {
                let sql = "SELECT count(*) FROM orders";
                sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
            }
        }
    }

    /// Each order has its message, and there are so many.
    async fn assert_orders(&self, count: i64) {
        assert_eq!(self.orders().await, count);
        let messages = self.store.admin().list(&Filter::default()).await.unwrap().messages;
        assert_eq!(i64::try_from(messages.len()).unwrap(), count);
    }

    async fn entries(&self) -> usize {
        let page = self.store.admin().entries(&EntryFilter::default()).await.unwrap();
        page.entries.len()
    }

    /// The service, with orders that take a lease of so long.
    fn app(&self, set: impl Setting) -> Router {
        match &self.at {
            At::Postgres(_, schema) => {
                let outbox = postgres::Outbox::in_schema(schema.clone());
                self.with(outbox, post(place_on_postgres), set)
            }
            At::Sqlite(..) => self.with(sqlite::AsyncOutbox::default(), post(place_on_sqlite), set),
        }
    }

    fn with<O: Clone + Send + Sync + 'static>(
        &self,
        outbox: O,
        place: axum::routing::MethodRouter<Self>,
        set: impl Setting,
    ) -> Router {
        let ledger = Ledger::new(self.store.store(), outbox, "shop").lease(2 * SECOND);
        Router::new()
            .route("/orders", place)
            .route("/plain", post(plain).patch(plain))
            .route("/large", post(large))
            .route("/look", get(look))
            .route("/slow", post(slow))
            .route("/panics", post(panics))
            .route("/busy", post(busy))
            .route("/denied", post(denied))
            .route_layer(
                set.set(
                    Idempotency::new(ledger, by_authorization("secret"))
                        .keep(100)
                        .most_asked(1000),
                ),
            )
            .with_state(self.clone())
    }

    async fn serve(&self, set: impl Setting) -> SocketAddr {
        serve(self.app(set)).await
    }
}

/// Serves it, for as long as the test lasts.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// What a test changes of the layer.
trait Setting {
    fn set<O: Clone>(self, layer: Idempotency<O>) -> Idempotency<O>;
}

struct AsItIs;

impl Setting for AsItIs {
    fn set<O: Clone>(self, layer: Idempotency<O>) -> Idempotency<O> {
        layer
    }
}

struct Strict;

impl Setting for Strict {
    fn set<O: Clone>(self, layer: Idempotency<O>) -> Idempotency<O> {
        layer.required().mismatch_status(StatusCode::CONFLICT)
    }
}

fn failed(error: impl std::fmt::Display) -> Response<Body> {
    let mut response = Response::new(Body::from(error.to_string()));
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

fn placed() -> Answer {
    Answer::json("placed").unwrap().status(201)
}

fn message(body: &str) -> Message {
    Message::bytes("order.placed", "text/plain", body)
}

async fn place_on_postgres(
    State(shop): State<Shop>,
    Extension(hold): Extension<Hold<postgres::Outbox>>,
    body: String,
) -> Result<Response<posthouse::idempotency::Body>, Response<Body>> {
    shop.executions.fetch_add(1, Ordering::SeqCst);
    shop.comes_to("begun").await;
    let At::Postgres(pool, schema) = &shop.at else {
        panic!("another database")
    };
    let mut tx = pool.begin().await.map_err(failed)?;
    let sql = format!("INSERT INTO {schema}.orders VALUES ($1)");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(&body);
    query.execute(&mut *tx).await.map_err(failed)?;
    let outbox = postgres::Outbox::in_schema(schema.clone());
    outbox.enqueue(&mut tx, message(&body)).await.map_err(failed)?;
    shop.comes_to("placed").await;
    hold.finish_in(&mut tx, placed()).await.map_err(failed)?;
    shop.comes_to("recorded").await;
    tx.commit().await.map_err(failed)?;
    shop.comes_to("committed").await;
    Ok(response(placed()))
}

async fn place_on_sqlite(
    State(shop): State<Shop>,
    Extension(hold): Extension<Hold<sqlite::AsyncOutbox>>,
    body: String,
) -> Result<Response<posthouse::idempotency::Body>, Response<Body>> {
    shop.executions.fetch_add(1, Ordering::SeqCst);
    shop.comes_to("begun").await;
    let At::Sqlite(pool, _) = &shop.at else {
        panic!("another database")
    };
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let query = sqlx::query("INSERT INTO orders VALUES (?)").bind(&body);
    query.execute(&mut *tx).await.map_err(failed)?;
    let outbox = sqlite::AsyncOutbox::default();
    outbox.enqueue(&mut tx, message(&body)).await.map_err(failed)?;
    shop.comes_to("placed").await;
    hold.finish_in(&mut tx, placed()).await.map_err(failed)?;
    shop.comes_to("recorded").await;
    tx.commit().await.map_err(failed)?;
    shop.comes_to("committed").await;
    Ok(response(placed()))
}

/// Knows nothing of the ledger.
async fn plain(State(shop): State<Shop>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let n = shop.executions.fetch_add(1, Ordering::SeqCst) + 1;
    let status = if body.is_empty() {
        StatusCode::UNPROCESSABLE_ENTITY
    } else {
        StatusCode::CREATED
    };
    let trace = headers.get("trace").cloned();
    let mut response = Response::new(Body::from(format!("execution {n}")));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("location", format!("/plain/{n}").parse().unwrap());
    response
        .headers_mut()
        .insert("set-cookie", "session=secret".parse().unwrap());
    response
        .headers_mut()
        .extend(trace.map(|trace| (axum::http::HeaderName::from_static("trace"), trace)));
    response
}

async fn large(State(shop): State<Shop>) -> String {
    shop.executions.fetch_add(1, Ordering::SeqCst);
    "x".repeat(101)
}

async fn look(State(shop): State<Shop>) -> String {
    let n = shop.executions.fetch_add(1, Ordering::SeqCst) + 1;
    format!("look {n}")
}

/// Takes as long as it is kept at the gate.
async fn slow(State(shop): State<Shop>) -> String {
    let n = shop.executions.fetch_add(1, Ordering::SeqCst) + 1;
    shop.gate.notified().await;
    format!("slow {n}")
}

async fn panics(State(shop): State<Shop>) -> String {
    assert!(
        shop.executions.fetch_add(1, Ordering::SeqCst) > 0,
        "the first one panics"
    );
    "second".to_owned()
}

/// Has no time at first.
async fn busy(State(shop): State<Shop>) -> (StatusCode, String) {
    let n = shop.executions.fetch_add(1, Ordering::SeqCst);
    match n {
        0 => (StatusCode::SERVICE_UNAVAILABLE, "not now".to_owned()),
        n => (StatusCode::OK, format!("execution {}", n + 1)),
    }
}

/// Lets nobody in at first.
async fn denied(State(shop): State<Shop>) -> (StatusCode, &'static str) {
    match shop.executions.fetch_add(1, Ordering::SeqCst) {
        0 => (StatusCode::FORBIDDEN, "not you"),
        _ => (StatusCode::OK, "you"),
    }
}

/// What was answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Told {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(own, _)| own == name);
        found.next().map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    #[track_caller]
    pub(crate) fn assert_refused(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!((&problem["code"], &problem["status"]), (&code.into(), &status.into()));
        assert!(
            problem["detail"].is_string() && problem["title"].is_string(),
            "{problem}"
        );
    }
}

pub(crate) fn request(what: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let length = body.len();
    format!("{what} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}")
}

const ANNA: (&str, &str) = ("authorization", "Bearer anna");
const BEN: (&str, &str) = ("authorization", "Bearer ben");
const KEY: (&str, &str) = ("idempotency-key", "k");

pub(crate) async fn ask(to: SocketAddr, request: String) -> Option<Told> {
    let mut stream = TcpStream::connect(to).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().unwrap();
    let headers = lines.map(|line| line.split_once(": ").unwrap());
    Some(Told {
        status,
        headers: headers
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    })
}

pub(crate) async fn told(to: SocketAddr, what: &str, headers: &[(&str, &str)], body: &str) -> Told {
    ask(to, request(what, headers, body)).await.expect("an answer")
}

/// Asks until somebody has the answer: nobody is at it any more.
async fn in_the_end(to: SocketAddr, what: &str, body: &str) -> Told {
    let waited = async {
        loop {
            match ask(to, request(what, &[ANNA, KEY], body)).await {
                Some(told) if told.status == 409 => assert!(told.header("retry-after").is_some(), "{told:?}"),
                Some(told) => return told,
                None => {}
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(60 * SECOND, waited)
        .await
        .expect("an answer in time")
}

pub(crate) async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let waited = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(60 * SECOND, waited)
        .await
        .expect("it does not happen");
}

/// One execution, one row, one message, and the same answer for all.
async fn of_fifty_at_once_one_is_done(shop: Shop) {
    let to = shop.serve(AsItIs).await;
    let asked: Vec<_> = (0..50)
        .map(|_| tokio::spawn(ask(to, request("POST /orders", &[ANNA, KEY], "42"))))
        .collect();
    let mut busy = 0;
    for task in asked {
        let told = task.await.unwrap().expect("an answer");
        match told.status {
            201 => assert_eq!(told.body, "\"placed\""),
            _ => {
                told.assert_refused(409, "TX.IDEMPOTENT_BUSY");
                busy += 1;
            }
        }
    }
    assert!(busy < 50, "somebody was told");
    for _ in 0..busy {
        let told = in_the_end(to, "POST /orders", "42").await;
        assert_eq!((told.status, told.body.as_str()), (201, "\"placed\""));
        assert_eq!(told.header("content-type"), Some("application/json"));
    }
    assert_eq!(shop.executions.load(Ordering::SeqCst), 1);
    shop.assert_orders(1).await;
    assert_eq!(shop.entries().await, 1);
}

async fn something_else_is_refused_and_another_caller_is_another(shop: Shop) {
    let to = shop.serve(AsItIs).await;
    assert_eq!(told(to, "POST /orders", &[ANNA, KEY], "42").await.status, 201);
    told(to, "POST /orders", &[ANNA, KEY], "43")
        .await
        .assert_refused(422, "STORAGE.CONFLICT");
    told(to, "POST /orders?to=ben", &[ANNA, KEY], "42")
        .await
        .assert_refused(422, "STORAGE.CONFLICT");
    shop.assert_orders(1).await;
    let ben = told(to, "POST /orders", &[BEN, KEY], "43").await;
    assert_eq!((ben.status, ben.is_replayed()), (201, false));
    shop.assert_orders(2).await;
    told(to, "POST /orders", &[KEY], "42")
        .await
        .assert_refused(401, "caller_unknown");
    shop.assert_orders(2).await;
}

/// The process is killed at each step. When its lease is over the key is free, and the effect is there once.
async fn killed_at_each_step_it_is_done_once(shop: Shop) {
    for (n, step) in ["begun", "placed", "recorded", "committed"].into_iter().enumerate() {
        let body = format!("order {n}");
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "http::a_child_that_stops_at_a_step", "--nocapture"])
            .env(DATABASE, shop.url())
            .env(STOP_AT, step)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = async |what: &str| loop {
            let line = lines.next_line().await.unwrap().expect("the child has ended");
            if let Some(rest) = line.strip_prefix(what) {
                return rest.trim().to_owned();
            }
        };
        let to = said("told serving").await.parse().unwrap();
        let key = ("idempotency-key", step);
        let asked = tokio::spawn(ask(to, request("POST /orders", &[ANNA, key], &body)));
        said(&format!("told at {step}")).await;
        let kill = format!("kill -9 {}", child.id().unwrap());
        assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
        child.wait().await.unwrap();
        assert_eq!(asked.await.unwrap(), None, "nobody answers");
        let heir = shop.serve(AsItIs).await;
        let waited = async {
            loop {
                let again = told(heir, "POST /orders", &[ANNA, key], &body).await;
                if again.status != 409 {
                    return again;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let again = tokio::time::timeout(60 * SECOND, waited)
            .await
            .expect("the key is free");
        assert_eq!((again.status, again.body.as_str()), (201, "\"placed\""));
        // What was committed is told again; what was not is done now.
        assert_eq!(again.is_replayed(), step == "committed", "{step}");
        shop.assert_orders(i64::try_from(n).unwrap() + 1).await;
    }
}

/// Runs the service until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_stops_at_a_step() {
    let Ok(url) = env::var(DATABASE) else { return };
    let shop = Shop::open(&url, None).await;
    let to = shop.serve(AsItIs).await;
    tell(&format!("serving {to}"));
    std::future::pending().await
}

// The output is how a child answers.
#[allow(clippy::print_stdout)]
pub(crate) fn tell(what: &str) {
    println!("\ntold {what}");
}

async fn answers_are_told_again_as_they_were(shop: Shop) {
    let to = shop.serve(AsItIs).await;
    for (body, status) in [("a", 201), ("", 422)] {
        let key = ("idempotency-key", if body.is_empty() { "empty" } else { "full" });
        let first = told(to, "POST /plain", &[ANNA, key], body).await;
        assert_eq!((first.status, first.is_replayed()), (status, false));
        assert!(first.header("set-cookie").is_some());
        let again = told(to, "POST /plain", &[ANNA, key], body).await;
        assert_eq!((again.status, again.is_replayed()), (status, true));
        assert_eq!(
            (&again.body, again.header("location")),
            (&first.body, first.header("location"))
        );
        assert_eq!(again.header("set-cookie"), None, "that was for one");
    }
    // Another method, another path and no key at all are other requests.
    let other = told(to, "PATCH /plain", &[ANNA, ("idempotency-key", "full")], "a").await;
    assert_eq!((other.status, other.body.as_str()), (201, "execution 3"));
    for n in 4..6 {
        let without = told(to, "POST /plain", &[ANNA], "a").await;
        assert_eq!(without.body, format!("execution {n}"));
    }
    for n in 6..8 {
        let looked = told(to, "GET /look", &[ANNA, KEY], "").await;
        assert_eq!(looked.body, format!("look {n}"));
    }
}

async fn what_may_be_tried_again_is_not_kept(shop: Shop) {
    let to = shop.serve(AsItIs).await;
    let first = told(to, "POST /busy", &[ANNA, KEY], "a").await;
    assert_eq!((first.status, first.body.as_str()), (503, "not now"));
    // What it did is not known: only the same may go on.
    told(to, "POST /busy", &[ANNA, KEY], "b")
        .await
        .assert_refused(422, "STORAGE.CONFLICT");
    for replayed in [false, true] {
        let again = told(to, "POST /busy", &[ANNA, KEY], "a").await;
        assert_eq!((again.status, again.body.as_str()), (200, "execution 2"));
        assert_eq!(again.is_replayed(), replayed);
    }
}

/// What was refused at the door may be asked for again, also something else.
async fn a_refusal_at_the_door_is_not_kept(shop: Shop) {
    let to = shop.serve(AsItIs).await;
    assert_eq!(told(to, "POST /denied", &[ANNA, KEY], "a").await.status, 403);
    let again = told(to, "POST /denied", &[ANNA, KEY], "b").await;
    assert_eq!(
        (again.status, again.body.as_str(), again.is_replayed()),
        (200, "you", false)
    );
    assert_eq!(told(to, "POST /nowhere", &[ANNA, KEY], "a").await.status, 404);
    assert_eq!(shop.entries().await, 1);
}

/// Inside a nested router a layer is shown a part of the path: the whole of it counts.
async fn the_whole_path_counts(shop: Shop) {
    let ledger = Ledger::new(shop.store.store(), sqlite::AsyncOutbox::default(), "shop");
    let once = Idempotency::new(ledger, by_authorization("secret"));
    let nested = Router::new().route("/plain", post(plain)).route_layer(once);
    let to = serve(Router::new().nest("/shops/{shop}", nested).with_state(shop)).await;
    for n in 1..3 {
        let told = told(to, &format!("POST /shops/{n}/plain"), &[ANNA, KEY], "a").await;
        assert_eq!(
            (told.body.clone(), told.header("location")),
            (format!("execution {n}"), Some(format!("/plain/{n}").as_str()))
        );
    }
}

/// The store does not take the answer at first: that is told all the same, and kept in the end.
async fn an_answer_that_is_not_kept_at_once_is_kept_in_the_end(shop: Shop) {
    let forgetful = Forgetful(AtomicUsize::new(3));
    let store = posthouse_testkit::Wrapped::new(shop.store.store(), forgetful);
    let ledger = Ledger::new(Arc::new(store), sqlite::AsyncOutbox::default(), "shop").lease(2 * SECOND);
    let app = Router::new()
        .route("/plain", post(plain))
        .route_layer(Idempotency::new(ledger, by_authorization("secret")))
        .with_state(shop.clone());
    let to = serve(app).await;
    let first = told(to, "POST /plain", &[ANNA, KEY], "a").await;
    assert_eq!((first.status, first.body.as_str()), (201, "execution 1"));
    let again = in_the_end(to, "POST /plain", "a").await;
    assert_eq!(
        (again.status, again.body.as_str(), again.is_replayed()),
        (201, "execution 1", true)
    );
}

/// Does not record an end, so often first.
struct Forgetful(AtomicUsize);

#[async_trait::async_trait]
impl posthouse_testkit::wrapped::Hook for Forgetful {
    async fn call(
        &self,
        call: posthouse_testkit::wrapped::Call,
        store: &Arc<dyn posthouse::Store>,
    ) -> Result<posthouse_testkit::wrapped::Reply, Error> {
        let ends = matches!(call, posthouse_testkit::wrapped::Call::Conclude(..));
        let fails = |left: usize| left.checked_sub(1);
        if ends && self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err(Error::Unavailable("not now".into()));
        }
        call.to(store).await
    }
}

async fn what_is_too_large_passes_and_is_not_told_again(shop: Shop) {
    let to = shop.serve(AsItIs).await;
    let first = told(to, "POST /large", &[ANNA, KEY], "a").await;
    assert_eq!((first.status, first.body.len()), (200, 101));
    told(to, "POST /large", &[ANNA, KEY], "a")
        .await
        .assert_refused(409, "result_not_kept");
    assert_eq!(shop.executions.load(Ordering::SeqCst), 1);
}

async fn bad_requests_are_refused_and_nothing_is_done(shop: Shop) {
    let to = shop.serve(Strict).await;
    told(to, "POST /plain", &[ANNA], "a")
        .await
        .assert_refused(400, "key_missing");
    for wrong in ["", "\"\"", &"k".repeat(256), "caf\u{e9}"] {
        let key = ("idempotency-key", wrong);
        let refused = told(to, "POST /plain", &[ANNA, key], "a").await;
        refused.assert_refused(400, "key_malformed");
    }
    let refused = told(to, "POST /plain", &[ANNA, KEY, KEY], "a").await;
    refused.assert_refused(400, "key_malformed");
    let refused = told(to, "POST /plain", &[ANNA, KEY], &"a".repeat(1001)).await;
    refused.assert_refused(413, "request_too_large");
    assert_eq!((shop.executions.load(Ordering::SeqCst), shop.entries().await), (0, 0));
    assert_eq!(told(to, "POST /plain", &[ANNA, KEY], "a").await.status, 201);
    let refused = told(to, "POST /plain", &[ANNA, KEY], "b").await;
    refused.assert_refused(409, "STORAGE.CONFLICT");
}

/// A client that goes away does not end what it has begun; nor does a lease, while it is worked on.
async fn what_takes_long_goes_on_and_is_done_once(shop: Shop) {
    let to = shop.serve(AsItIs).await;
    let mut gone = TcpStream::connect(to).await.unwrap();
    gone.write_all(request("POST /slow", &[ANNA, KEY], "a").as_bytes())
        .await
        .unwrap();
    until(|| async { shop.executions.load(Ordering::SeqCst) == 1 }).await;
    drop(gone);
    // As long as two leases.
    let began = std::time::Instant::now();
    while began.elapsed() < 4 * SECOND {
        let told = told(to, "POST /slow", &[ANNA, KEY], "a").await;
        told.assert_refused(409, "TX.IDEMPOTENT_BUSY");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    shop.gate.notify_waiters();
    let told = in_the_end(to, "POST /slow", "a").await;
    assert_eq!(
        (told.status, told.body.as_str(), told.is_replayed()),
        (200, "slow 1", true)
    );
    assert_eq!(shop.executions.load(Ordering::SeqCst), 1);
}

/// What a service did that panicked is not known: another goes on when its time is up.
async fn after_a_panic_another_goes_on(shop: Shop) {
    let to = shop.serve(AsItIs).await;
    assert_eq!(ask(to, request("POST /panics", &[ANNA, KEY], "a")).await, None);
    let busy = told(to, "POST /panics", &[ANNA, KEY], "a").await;
    busy.assert_refused(409, "TX.IDEMPOTENT_BUSY");
    let told = in_the_end(to, "POST /panics", "a").await;
    assert_eq!((told.status, told.body.as_str()), (200, "second"));
}

/// The store is gone: nothing is done, and the request may come again.
async fn without_a_store_nothing_is_done(shop: Shop) {
    let store = posthouse_testkit::Wrapped::new(shop.store.store(), Gone);
    let ledger = Ledger::new(Arc::new(store), sqlite::AsyncOutbox::default(), "shop");
    let app = Router::new()
        .route("/plain", post(plain))
        .layer(Idempotency::new(ledger, by_authorization("secret")))
        .with_state(shop.clone());
    let to = serve(app).await;
    let told = told(to, "POST /plain", &[ANNA, KEY], "a").await;
    told.assert_refused(503, "PROVIDER.UNAVAILABLE");
    assert_eq!(told.header("retry-after"), Some("1"));
    assert!(!told.body.contains("moon"), "what the store said stays here");
    assert_eq!(shop.executions.load(Ordering::SeqCst), 0);
}

struct Gone;

#[async_trait::async_trait]
impl posthouse_testkit::wrapped::Hook for Gone {
    async fn call(
        &self,
        _: posthouse_testkit::wrapped::Call,
        _: &Arc<dyn posthouse::Store>,
    ) -> Result<posthouse_testkit::wrapped::Reply, Error> {
        Err(Error::Unavailable("it is on the moon".into()))
    }
}

macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::Shop::on_postgres().await).await;
            })*
        }
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::Shop::on_sqlite().await).await;
            })*
        }
    };
}

on_both! {
    of_fifty_at_once_one_is_done,
    something_else_is_refused_and_another_caller_is_another,
    killed_at_each_step_it_is_done_once,
    answers_are_told_again_as_they_were,
    what_may_be_tried_again_is_not_kept,
    a_refusal_at_the_door_is_not_kept,
    the_whole_path_counts,
    an_answer_that_is_not_kept_at_once_is_kept_in_the_end,
    what_is_too_large_passes_and_is_not_told_again,
    bad_requests_are_refused_and_nothing_is_done,
    what_takes_long_goes_on_and_is_done_once,
    after_a_panic_another_goes_on,
    without_a_store_nothing_is_done,
}
