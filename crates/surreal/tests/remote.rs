//! A database of a server, over a WebSocket: SurrealDB's own server, as its crate makes it. The suite is run on the engines that it is made of; here it is
//! asked whether the way there changes anything.

use posthouse_core::{
    Admin, Claim, Durability, Error, Limits, Message, Prune, SagaId, Settlement, Store, StoreSettings, Wake, saga,
};
use posthouse_surreal::{Database, Options, Outbox, SurrealDb, from_surreal};
use posthouse_testkit::{Fixture, suite};
use std::{
    process::Command,
    time::{Duration, Instant},
};

use crate::{beside::Server, fixture::SurrealFixture};

const LEASE: Duration = Duration::from_secs(60);

fn message(body: &str) -> Message {
    Message::bytes("t", "text/plain", body.as_bytes().to_vec())
}

/// Cases of the suite that go through everything that a store does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_of_the_suite_pass_over_a_websocket() {
    let server = Server::start("mem://").await;
    for (n, case) in [
        "a_committed_message_is_claimed_once",
        "a_rolled_back_message_never_existed",
        "stale_token_is_refused_by_settle",
        "a_key_belongs_to_one_claim_at_a_time",
        "an_expired_lease_cannot_be_used",
        "settle_in_commits_with_the_handlers_change",
        "the_effect_and_its_record_commit_together",
        "of_concurrent_replays_one_wins",
    ]
    .into_iter()
    .enumerate()
    {
        let url = server.url(&format!("suite/case_{n}"));
        let fx = SurrealFixture::new(&url, None).await;
        suite::find(case)(&fx).await;
        fx.check().await;
    }
}

#[tokio::test]
async fn a_user_of_the_database_of_the_namespace_or_of_the_server_signs_in() {
    let server = Server::start("mem://").await;
    let root = Database::connect(&server.url("shop/orders")).await.unwrap();
    SurrealDb::migrate(&root).await.unwrap();
    let users = "
        DEFINE USER of_database ON DATABASE PASSWORD 'one' ROLES EDITOR;
        DEFINE USER of_namespace ON NAMESPACE PASSWORD 'two@/?' ROLES EDITOR;
        DEFINE USER looks_on ON DATABASE PASSWORD 'three' ROLES VIEWER;";
    root.client().query(users).await.unwrap().check().unwrap();
    for user in ["of_database:one", "of_namespace:two%40%2F%3F", "root:s3cret"] {
        let store = SurrealDb::connect(&server.url_of(user, "shop/orders"), Options::default()).await;
        store.unwrap().enqueue_now(vec![message(user)]).await.unwrap();
    }
    let url = server.url_of("looks_on:three", "shop/orders");
    let looks_on = SurrealDb::connect(&url, Options::default()).await.unwrap();
    assert_eq!(looks_on.counts().await.unwrap().ready.value, 3);
    let denied = looks_on.enqueue_now(vec![message("no")]).await.unwrap_err();
    assert!(matches!(denied, Error::Denied(_)), "{denied:?}");
    // Nor is anything granted, also of a key that has a record already.
    let root = SurrealDb::open(root, Options::default()).await.unwrap();
    root.enqueue_now(vec![message("one").order_key("k"), message("two").order_key("k")])
        .await
        .unwrap();
    let granted = root.claim(&Claim::new("w", 4, LEASE)).await.unwrap();
    let ended: Vec<_> = granted
        .iter()
        .map(|one| Settlement::delivered(&one.lease, None))
        .collect();
    root.settle(&ended).await.unwrap();
    // Nor removed, although nothing would be written by it.
    let denied = looks_on
        .prune(&Prune::done(Duration::ZERO, 100, "op"))
        .await
        .unwrap_err();
    assert!(matches!(denied, Error::Denied(_)), "{denied:?}");
    let denied = looks_on.claim(&Claim::new("w", 4, LEASE)).await.unwrap_err();
    assert!(matches!(denied, Error::Denied(_)), "{denied:?}");
    root.enqueue_now((0..2).map(|_| message("more")).collect())
        .await
        .unwrap();
    assert_eq!(looks_on.counts().await.unwrap().ready.value, 3);
    for user in ["of_database:wrong", "nobody:one"] {
        let denied = Database::connect(&server.url_of(user, "shop/orders"))
            .await
            .map(drop)
            .unwrap_err();
        assert!(matches!(denied, Error::Denied(_)), "{denied:?}");
        assert!(!denied.to_string().contains("wrong"), "{denied}");
    }
    assert_eq!(looks_on.capabilities().durability, Durability::Server);
}

#[tokio::test]
async fn where_no_server_answers_it_is_unavailable() {
    let mut server = Server::start("mem://").await;
    server.down();
    let told = Database::connect(&server.url("a/b")).await.map(drop).unwrap_err();
    assert!(matches!(told, Error::Unavailable(_)), "{told:?}");
}

/// A server is killed and started again: what was committed is there, the lease too, and nobody has to connect anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_is_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(&format!("surrealkv://{}", folder.path().join("db").display())).await;
    let db = Database::connect(&server.url("shop/orders")).await.unwrap();
    SurrealDb::migrate(&db).await.unwrap();
    let store = SurrealDb::open(db.clone(), Options::default()).await.unwrap();
    store.enqueue_now(vec![message("one"), message("two")]).await.unwrap();
    let lease = store.claim(&Claim::new("w", 1, LEASE)).await.unwrap().remove(0).lease;
    let open = db.begin().await.unwrap();
    Outbox::default().enqueue(&open, message("three")).await.unwrap();
    server.down();
    let told = store.counts().await.unwrap_err();
    assert!(told.retryable(), "{told:?}");
    server.up().await;
    let since = Instant::now();
    // Ends: when it is used again, or not.
    while let Err(error) = store.counts().await {
        assert!(since.elapsed() < Duration::from_secs(30), "{error:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // What was not committed is gone with the server.
    let lost = open.commit().await.map_err(from_surreal);
    assert!(lost.is_err());
    let verdicts = store.settle(&[Settlement::delivered(&lease, None)]).await.unwrap();
    assert!(verdicts[0].is_settled(), "{verdicts:?}");
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.ready.value, counts.done.value), (1, 1));
}

/// A server comes back without the user, and is told of him again later: a client that was refused once is refused for ever, so another one is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_whom_a_server_did_not_know_for_a_while_is_let_in_again() {
    const USER: &str = "DEFINE USER app ON DATABASE PASSWORD 'app' ROLES EDITOR";
    async fn prepare(server: &Server) {
        let root = Database::connect(&server.url("shop/orders")).await.unwrap();
        SurrealDb::migrate(&root).await.unwrap();
        root.client().query(USER).await.unwrap().check().unwrap();
    }
    let mut server = Server::start("mem://").await;
    prepare(&server).await;
    let store = SurrealDb::connect(&server.url_of("app:app", "shop/orders"), Options::default())
        .await
        .unwrap();
    store.enqueue_now(vec![message("one")]).await.unwrap();
    server.down();
    server.up().await;
    let since = Instant::now();
    // Ends: when it is refused, which it is as soon as it has connected again.
    while !matches!(store.counts().await, Err(Error::Denied(_))) {
        assert!(since.elapsed() < Duration::from_secs(30), "it is not refused");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    prepare(&server).await;
    store.enqueue_now(vec![message("two")]).await.unwrap();
    assert_eq!(store.counts().await.unwrap().ready.value, 1);
    assert_woken(&store, &store).await;
}

/// Who sleeps is told of what comes in. That somebody goes to sleep succeeds in any case: without a bell he looks by the clock.
async fn assert_woken(sleeper: &SurrealDb, producer: &SurrealDb) {
    sleeper.asleep("w", LEASE).await.unwrap();
    let since = Instant::now();
    let (woken, enqueued) = tokio::join!(sleeper.wake(LEASE), producer.enqueue_now(vec![message("come")]));
    enqueued.unwrap();
    assert_eq!(woken.unwrap(), Wake::Rung);
    assert!(since.elapsed() < LEASE / 2, "he was not told");
}

#[tokio::test]
async fn an_encrypted_connection_trusts_whom_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ])
        .args([
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let server = Server::start_with("mem://", Some([certificate, key.clone()])).await;
    let db = Database::connect(&server.url("shop/orders")).await.unwrap();
    SurrealDb::migrate(&db).await.unwrap();
    // The system does not know it.
    let url = server.url("shop/orders");
    let (plain, _) = url.split_once("&sslrootcert").unwrap();
    let refused = Database::connect(plain).await.map(drop).unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
    for (file, said) in [
        ("/nowhere.pem", "cannot be read"),
        (key.to_str().unwrap(), "holds no certificate"),
    ] {
        let refused = Database::connect(&format!("{plain}&sslrootcert={file}"))
            .await
            .map(drop)
            .unwrap_err();
        assert!(refused.to_string().contains(said), "{refused}");
    }
}

/// What a session signs in with does not last; who it is does.
#[tokio::test]
async fn a_session_outlives_the_token_of_its_user() {
    let server = Server::start("mem://").await;
    let root = Database::connect(&server.url("shop/orders")).await.unwrap();
    SurrealDb::migrate(&root).await.unwrap();
    let user = "DEFINE USER brief ON DATABASE PASSWORD 'brief' ROLES EDITOR DURATION FOR TOKEN 1s, FOR SESSION 1s";
    root.client().query(user).await.unwrap().check().unwrap();
    let url = server.url_of("brief:brief", "shop/orders");
    let store = SurrealDb::connect(&url, Options::default()).await.unwrap();
    store.enqueue_now(vec![message("one")]).await.unwrap();
    // By the server's clock, which no test can move.
    tokio::time::sleep(Duration::from_millis(2200)).await;
    store.enqueue_now(vec![message("two")]).await.unwrap();
    assert_eq!(store.counts().await.unwrap().ready.value, 2);
}

/// Who gives up in the midst of a verb leaves nothing open that holds others up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verb_that_is_given_up_is_in_nobodys_way() {
    let server = Server::start("mem://").await;
    let db = Database::connect(&server.url("shop/orders")).await.unwrap();
    SurrealDb::migrate(&db).await.unwrap();
    let store = SurrealDb::open(db, Options::default()).await.unwrap();
    store
        .enqueue_now((0..50).map(|n| message(&n.to_string())).collect())
        .await
        .unwrap();
    for wait in 0..40 {
        let claim = Claim::new("w", 1, LEASE);
        let _ = tokio::time::timeout(Duration::from_micros(wait * 250), store.claim(&claim)).await;
    }
    let granted = store.claim(&Claim::new("w", 100, LEASE)).await.unwrap();
    let counts = store.counts().await.unwrap();
    assert_eq!(counts.ready.value, 0, "{} were granted at last", granted.len());
    assert_eq!(counts.leased.value, 50);
}

/// So much comes in while somebody sleeps that the server closes the connection on which it tells of it: nothing else is on that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_is_in_nobodys_way_who_sleeps() {
    let server = Server::start("mem://").await;
    let db = Database::connect(&server.url("shop/orders")).await.unwrap();
    SurrealDb::migrate(&db).await.unwrap();
    let sleeper = SurrealDb::open(db.clone(), Options::default()).await.unwrap();
    let producer = SurrealDb::connect(&server.url("shop/orders"), Options::default())
        .await
        .unwrap();
    let tx = db.begin().await.unwrap();
    tx.query("CREATE note SET line = 'before'")
        .await
        .unwrap()
        .check()
        .unwrap();
    sleeper.asleep("w", LEASE).await.unwrap();
    for _ in 0..5 {
        producer.enqueue_now(vec![message("one"); 1000]).await.unwrap();
    }
    tx.query("CREATE note SET line = 'after'")
        .await
        .unwrap()
        .check()
        .unwrap();
    db.commit(tx).await.unwrap();
    assert_eq!(sleeper.wake(LEASE).await.unwrap(), Wake::Rung);
    // The bell is lost or it is not; in either case there is work, and who goes to sleep again wakes: by the bell, or by the clock.
    assert_eq!(sleeper.claim(&Claim::new("w", 10, LEASE)).await.unwrap().len(), 10);
    sleeper.asleep("w", LEASE).await.unwrap();
    producer.enqueue_now(vec![message("one")]).await.unwrap();
    sleeper.wake(Duration::from_millis(100)).await.unwrap();
    assert_eq!(sleeper.claim(&Claim::new("w", 10, LEASE)).await.unwrap().len(), 10);
}

/// What one WebSocket message cannot carry comes in several: headers count as payloads do, and sagas by their size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn much_at_once_is_read_in_parts() {
    let server = Server::start("mem://").await;
    let db = Database::connect(&server.url("shop/orders")).await.unwrap();
    SurrealDb::migrate(&db).await.unwrap();
    let store = SurrealDb::open(db, Options::default()).await.unwrap();
    let mut heavy = message("heavy");
    for n in 0..64 {
        heavy = heavy.header(format!("x-{n}"), "h".repeat(4096));
    }
    let all = 280;
    for _ in 0..all / 40 {
        store.enqueue_now(vec![heavy.clone(); 40]).await.unwrap();
    }
    let granted = store.claim(&Claim::new("w", all, LEASE)).await.unwrap();
    assert_eq!(granted.len(), all as usize);
    assert!(granted.iter().all(|one| one.delivery.headers.len() == 64));

    let limits = Limits {
        payload_bytes: 8 << 20,
        ..Limits::default()
    };
    store
        .configure(&StoreSettings {
            limits,
            ..StoreSettings::default()
        })
        .await
        .unwrap();
    let declared =
        r#"{ "name": "one", "version": 1, "steps": [{ "name": "a", "action_uri": "fn:a", "idempotent": true }] }"#;
    let declared: saga::Declared = serde_json::from_str(declared).unwrap();
    let (declared, input) = (declared.compile().unwrap(), "i".repeat(7 << 20));
    let mut ids = Vec::new();
    for n in 0..10 {
        let start = saga::Start::new(SagaId(uuid::Uuid::now_v7()), &declared, n.to_string(), &input).unwrap();
        ids.push(store.start_now(start).await.unwrap().id());
    }
    let found = store.load_sagas(&ids).await.unwrap();
    for (id, found) in ids.into_iter().zip(found) {
        assert_eq!(found.unwrap().unwrap().row.id, id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_wakes_who_sleeps_in_another_process() {
    let server = Server::start("mem://").await;
    let db = Database::connect(&server.url("shop/orders")).await.unwrap();
    SurrealDb::migrate(&db).await.unwrap();
    let sleeper = SurrealDb::open(db, Options::default()).await.unwrap();
    assert!(sleeper.capabilities().wakes_across_processes);
    let producer = SurrealDb::connect(&server.url("shop/orders"), Options::default())
        .await
        .unwrap();
    assert_woken(&sleeper, &producer).await;
    // The role that is enough for everything but `migrate` is enough for that too.
    let user = "DEFINE USER editor ON DATABASE PASSWORD 'one' ROLES EDITOR";
    let root = producer.database().client();
    root.query(user).await.unwrap().check().unwrap();
    let url = server.url_of("editor:one", "shop/orders");
    let editor = SurrealDb::connect(&url, Options::default()).await.unwrap();
    assert_woken(&editor, &producer).await;
    let fx = SurrealFixture::new(&server.url("shop/other"), None).await;
    fx.check().await;
}
