//! `examples/memory_writeback`: the story itself, on both stores. It checks whatever it tells.

use sqlx::{Connection, PgConnection};

// The program prints; the test looks.
#[path = "../examples/memory_writeback/story/mod.rs"]
mod story;

async fn told(url: &str) {
    let mut lines = Vec::new();
    let told = story::tell(url, |line| lines.push(line)).await;
    let lines = lines.join("\n");
    assert!(told.is_ok(), "{lines}\n{told:?}");
    for class in posthouse::class::ALL {
        assert!(lines.contains(class), "{class} is missing in:\n{lines}");
    }
    for said in [
        "lease of epoch 1 lost; found done at epoch 2",
        "3600 s",
        "-> the earlier memory id stands, and nothing was sent",
    ] {
        assert!(lines.contains(said), "{said:?} is missing in:\n{lines}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_story_holds_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    told(&format!("sqlite://{}/memories.db", folder.path().display())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_story_holds_on_postgres() {
    let server = std::env::var("POSTHOUSE_TEST_POSTGRES")
        .expect("POSTHOUSE_TEST_POSTGRES is not set; run ./test.sh, which starts a private server");
    let name = format!("memories_{}", uuid::Uuid::new_v4().simple());
    let mut control = PgConnection::connect(&server).await.unwrap();
    let sql = format!("CREATE DATABASE {name}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(&mut control)
        .await
        .unwrap();
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    told(&url).await;
    // Twice in one database: each run looks at its own.
    told(&url).await;
    let sql = format!("DROP DATABASE {name} WITH (FORCE)");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(&mut control)
        .await
        .unwrap();
}
