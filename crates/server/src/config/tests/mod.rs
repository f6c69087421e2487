//! The configuration as a whole: what is read, what is refused, what is told of it.

mod any;
mod keys;
mod problems;
mod reading;
mod secrets;
mod shown;
mod sources;

use super::*;

const EXAMPLE: &str = include_str!("../../../../../posthouse.example.toml");

fn with(text: &str, environment: Environment, store: Option<&str>) -> Result<Loaded, Problems> {
    let sources = Sources {
        file: None,
        environment,
        store: store.map(str::to_owned),
    };
    finish(read_text(text, &sources), |_| true)
}

fn read(text: &str) -> Result<Loaded, Problems> {
    with(text, Environment::default(), None)
}

#[track_caller]
fn sound(text: &str) -> Config {
    read(text)
        .unwrap_or_else(|problems| panic!("{}", told(&problems)))
        .config
}

fn told(problems: &Problems) -> String {
    problems.all.iter().map(Problem::render).collect()
}

/// The one thing that is wrong: its key, its line, and what is said.
#[track_caller]
fn wrong(text: &str) -> (String, usize, String) {
    let problems = read(text).expect_err("something is wrong");
    assert_eq!(problems.errors(), 1, "{}", told(&problems));
    let one = &problems.all[0];
    let help = one.help.clone().unwrap_or_default();
    (
        one.key.clone(),
        one.line().unwrap_or(0),
        format!("{} {help}", one.message),
    )
}

#[track_caller]
fn refused(text: &str, key: &str, part: &str) {
    let (found, line, said) = wrong(text);
    assert_eq!(found, key, "{said}");
    assert!(line > 0 && said.contains(part), "line {line}: {said}");
}

fn route(more: &str) -> String {
    format!("[[route]]\ntopic = \"a.*\"\nto = \"https://a.example/in\"\n{more}\n")
}
