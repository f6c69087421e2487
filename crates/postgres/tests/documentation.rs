//! Runs `docs/sql.md`: every ```sql block through psql and every ```python block through psycopg, in order, in a database of
//! its own, and compares what they print with the ```text block that follows. Identities and widths are masked.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use crate::fixture::{session, url};
use posthouse_postgres::{Options, Postgres};

/// A block of code and what it prints.
struct Example {
    language: String,
    code: String,
    printed: String,
}

fn examples(page: &str) -> Vec<Example> {
    let mut blocks: Vec<(String, String)> = Vec::new();
    let mut inside: Option<(String, String)> = None;
    for line in page.lines() {
        match (&mut inside, line.strip_prefix("```")) {
            (None, Some(language)) => inside = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(inside.take()),
            (Some((_, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
        .chunks(2)
        .map(|pair| {
            assert_eq!(pair[1].0, "text", "each block of code is followed by what it prints");
            Example {
                language: pair[0].0.clone(),
                code: pair[0].1.clone(),
                printed: pair[1].1.clone(),
            }
        })
        .collect()
}

/// Identities, runs of spaces and dashes, and empty lines do not count.
fn masked(text: &str) -> Vec<String> {
    let mask = |word: &str| {
        if uuid::Uuid::parse_str(word.trim_end_matches(',')).is_ok() {
            "<id>".to_owned()
        } else {
            word.to_owned()
        }
    };
    text.lines()
        .map(|line| line.split_whitespace().map(mask).collect::<Vec<_>>().join(" "))
        .filter(|line| {
            !line.is_empty()
                && !line.chars().all(|c| c == '-' || c == '+')
                && !(line.starts_with('(') && line.contains(" row"))
        })
        .collect()
}

fn run(program: &str, args: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program} cannot be started ({e}); run ./test.sh, which installs it"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

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

    let psql = std::env::var("POSTHOUSE_TEST_PSQL").unwrap_or_else(|_| "psql".to_owned());
    let python = std::env::var("POSTHOUSE_TEST_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned());
    let page = include_str!("../../../docs/sql.md");
    let examples = examples(page);
    let languages: Vec<_> = examples.iter().map(|e| e.language.as_str()).collect();
    assert!(
        languages.contains(&"sql") && languages.contains(&"python"),
        "{languages:?}"
    );
    // One psql session for the whole page, with a line between the blocks to tell their output apart.
    let script: String = examples
        .iter()
        .filter(|e| e.language == "sql")
        .map(|e| format!("{}\\echo ====\n", e.code))
        .collect();
    let script =
        format!("\\set VERBOSITY verbose\n\\set SHOW_CONTEXT never\n\\o | cat\n\\o\n\\set ON_ERROR_STOP off\n{script}");
    let printed = run("sh", &["-c", &format!("exec {psql} -X -q -d '{here}' 2>&1")], &script);
    let mut outputs = printed.split("====");
    for example in &examples {
        let output = match example.language.as_str() {
            "sql" => outputs.next().unwrap().to_owned(),
            "python" => run(&python, &["-"], &format!("URL = {here:?}\n{}", example.code)),
            other => panic!("no way to run {other}"),
        };
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
