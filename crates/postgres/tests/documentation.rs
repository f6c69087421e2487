//! Runs the pages about PostgreSQL: every ```sql block through psql and every ```python block through psycopg, in order, in a
//! database of its own, and compares what they print with what the page says.

use posthouse_postgres::{Options, Postgres};
use posthouse_testkit::page::{examples, masked, python, run};
use tokio_postgres::Client;

use crate::fixture::{session, url};

/// A database of its own with the schema in it: its name and its address.
async fn database(control: &Client) -> (String, String) {
    let database = format!("doc_{}", uuid::Uuid::new_v4().simple());
    control
        .batch_execute(&format!("CREATE DATABASE {database}"))
        .await
        .unwrap();
    let here = format!("{}/{database}", url().rsplit_once('/').unwrap().0);
    Postgres::open(&here, Options::default())
        .unwrap()
        .migrate()
        .await
        .unwrap();
    (database, here)
}

#[tokio::test]
async fn the_examples_of_the_sql_page_print_what_it_says() {
    let page = include_str!("../../../docs/sql.md");
    let languages: Vec<_> = examples(page).into_iter().map(|e| e.language).collect();
    assert!(languages.contains(&"sql".to_owned()) && languages.contains(&"python".to_owned()));
    print_what_it_says(page).await;
    // The page's roles; what they owned went with the database.
    let (control, driver) = session().await;
    let roles = ["owner", "producer", "relay", "operator", "viewer"].map(|role| format!("posthouse_{role}"));
    control
        .batch_execute(&format!("DROP ROLE {}", roles.join(", ")))
        .await
        .unwrap();
    driver.abort();
}

#[tokio::test]
async fn the_examples_of_the_page_about_watching_print_what_it_says() {
    print_what_it_says(include_str!("../../../docs/watching.md")).await;
}

#[tokio::test]
async fn the_examples_of_the_page_about_migrating_print_what_it_says() {
    print_what_it_says(include_str!("../../../docs/migrating.md")).await;
}

/// Runs a page, in a database of its own.
async fn print_what_it_says(page: &str) {
    let (control, driver) = session().await;
    let (database, here) = database(&control).await;
    let examples = examples(page);
    let openings = page.matches("\n```").count();
    assert_eq!(
        openings,
        examples.len() * 4,
        "a block is not followed by what it prints"
    );
    // One psql session for the whole page, with a line between the blocks to tell their output apart.
    let blocks: String = examples
        .iter()
        .filter(|e| e.language == "sql")
        .map(|e| format!("{}\\echo ====\n", e.code))
        .collect();
    let psql = std::env::var("POSTHOUSE_TEST_PSQL").unwrap_or_else(|_| "psql".to_owned());
    // From the top of the source, as somebody types it who has it.
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let command = format!("cd {top} && exec {psql} -X -q -d '{here}' 2>&1");
    let printed = run("sh", &["-c", &command], &blocks);
    let mut outputs = printed.split("====");
    for example in &examples {
        let output = match example.language.as_str() {
            "sql" => outputs.next().unwrap().to_owned(),
            "python" => run(&python(), &["-"], &format!("URL = {here:?}\n{}", example.code)),
            other => panic!("no way to run {other}"),
        };
        // Where in PostgreSQL's own source an error was raised is no part of our contract.
        let output: String = output
            .lines()
            .filter(|l| !l.starts_with("LOCATION:"))
            .map(|l| format!("{l}\n"))
            .collect();
        assert_eq!(
            masked(&output),
            masked(&example.printed),
            "the block\n{}\nprinted\n{output}",
            example.code
        );
    }
    control
        .batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)"))
        .await
        .unwrap();
    driver.abort();
}

/// What the page's worker sends when its first send of three messages of a key fails: after a retry, after a death that blocks the
/// key, and after one that does not.
const FAILING: &str = r#"
import time

def send(message):
    sent.append(bytes(message["payload"]).decode())
    if len(sent) == 1:
        raise Exception("the destination is down")

with psycopg.connect(URL, autocommit=True, row_factory=psycopg.rows.dict_row) as db:
    db.execute("UPDATE posthouse.settings SET backoff_base = '20 milliseconds'")
    for arguments in ["", "max_attempts => 1, on_dead => 'block',", "max_attempts => 1,"]:
        sent = []
        key = "key " + arguments
        for n in "123":
            db.execute(f"SELECT posthouse.enqueue('t', %s::text::jsonb, {arguments} order_key => %s)", [n, key])
        open = "SELECT FROM posthouse.messages WHERE order_key = %s AND state IN ('pending', 'leased')"
        rounds = 0
        while rounds < 2 or rounds < 500 and "block" not in arguments and db.execute(open, [key]).fetchone() is not None:
            work(db)
            rounds += 1
            time.sleep(0.01)
        print("sent", *sent)
        attempts = "SELECT count(*) AS n FROM posthouse.attempts a JOIN posthouse.messages m ON m.id = a.message_id WHERE m.order_key = %s"
        print("counted", db.execute(attempts, [key]).fetchone()["n"])
"#;

#[tokio::test]
async fn the_worker_of_the_page_keeps_the_order_of_a_key() {
    let (control, driver) = session().await;
    let (database, here) = database(&control).await;
    let examples = examples(include_str!("../../../docs/sql.md"));
    let worker = examples.iter().find(|e| e.language == "python").unwrap();
    let (worker, _) = worker.code.split_once("\nwith psycopg.connect").unwrap();
    let printed = run(&python(), &["-"], &format!("URL = {here:?}\n{worker}\n{FAILING}"));
    let told: Vec<_> = printed
        .lines()
        .filter(|l| l.starts_with("sent") || l.starts_with("counted"))
        .collect();
    let expected = [
        "sent 1 1 2 3",
        "counted 4",
        "sent 1",
        "counted 1",
        "sent 1 2 3",
        "counted 3",
    ];
    assert_eq!(told, expected, "{printed}");
    control
        .batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)"))
        .await
        .unwrap();
    driver.abort();
}
