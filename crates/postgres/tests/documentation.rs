//! Runs `docs/sql.md`: every ```sql block through psql and every ```python block through psycopg, in order, in a database of
//! its own, and compares what they print with what the page says.

use posthouse_postgres::{Options, Postgres};
use posthouse_testkit::page::{examples, masked, python, run};

use crate::fixture::{session, url};

#[tokio::test]
async fn the_examples_of_the_sql_page_print_what_it_says() {
    let (control, driver) = session().await;
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

    let examples = examples(include_str!("../../../docs/sql.md"));
    let openings = include_str!("../../../docs/sql.md").matches("\n```").count();
    assert_eq!(
        openings,
        examples.len() * 4,
        "a block is not followed by what it prints"
    );
    let languages: Vec<_> = examples.iter().map(|e| e.language.as_str()).collect();
    assert!(
        languages.contains(&"sql") && languages.contains(&"python"),
        "{languages:?}"
    );
    // One psql session for the whole page, with a line between the blocks to tell their output apart.
    let blocks: String = examples
        .iter()
        .filter(|e| e.language == "sql")
        // Roles belong to the whole server, not to this database.
        .map(|e| {
            format!(
                "{}\\echo ====\n",
                e.code
                    .replace("ROLE shop_", &format!("ROLE {database}_"))
                    .replace("TO shop_", &format!("TO {database}_"))
            )
        })
        .collect();
    let psql = std::env::var("POSTHOUSE_TEST_PSQL").unwrap_or_else(|_| "psql".to_owned());
    let printed = run("sh", &["-c", &format!("exec {psql} -X -q -d '{here}' 2>&1")], &blocks);
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
    let roles = ["producer", "worker", "operator"].map(|role| format!("{database}_{role}"));
    control
        .batch_execute(&format!("DROP ROLE {}", roles.join(", ")))
        .await
        .unwrap();
    driver.abort();
}
