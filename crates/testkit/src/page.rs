//! Documents that are tests: the blocks of code of a page, each followed by what it prints.

use std::{
    io::Write,
    process::{Command, Stdio},
};

/// A block of code and the ```` ```text ```` block that follows it.
pub struct Example {
    /// What stands after the opening fence.
    pub language: String,
    /// The code.
    pub code: String,
    /// What it prints.
    pub printed: String,
}

/// The blocks of a page that are followed by what they print.
pub fn examples(page: &str) -> Vec<Example> {
    let blocks = blocks(page);
    let pairs = blocks
        .iter()
        .zip(blocks.iter().skip(1))
        .filter(|(code, text)| code.0 != "text" && text.0 == "text");
    pairs
        .map(|(code, text)| Example {
            language: code.0.clone(),
            code: code.1.clone(),
            printed: text.1.clone(),
        })
        .collect()
}

fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
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
}

/// The lines of an output, for comparing: identities, times of day, runs of spaces, rules of dashes and empty lines do not count.
pub fn masked(text: &str) -> Vec<String> {
    let mask = |word: &str| {
        let id = uuid::Uuid::parse_str(word.trim_end_matches(',')).is_ok();
        let time = word.matches(':').count() == 2 && word.chars().all(|c| c.is_ascii_digit() || ":.".contains(c));
        match (id, time) {
            (true, _) => "<id>".to_owned(),
            (_, true) => "<time>".to_owned(),
            _ => word.to_owned(),
        }
    };
    let is_rule = |line: &str| line.chars().all(|c| c == '-' || c == '+');
    let is_count = |line: &str| line.starts_with('(') && line.contains(" row");
    text.lines()
        .map(|line| line.split_whitespace().map(mask).collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty() && !is_rule(line) && !is_count(line))
        .collect()
}

/// Runs a program with this input; answers what it wrote to both outputs.
pub fn run(program: &str, args: &[&str], input: &str) -> String {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child =
        child.unwrap_or_else(|e| panic!("{program} cannot be started ({e}); run ./test.sh, which installs it"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// The Python that the examples are run with.
pub fn python() -> String {
    std::env::var("POSTHOUSE_TEST_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned())
}
