//! What is wrong with a configuration, and where: file, line, column, the line itself. No secret is repeated.

use serde_json::json;
use std::{
    fmt::{self, Write as _},
    ops::Range,
};

use super::keys::KEYS;
use crate::output::visible;

/// The text of a file, and what to call it.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    /// The file as it was named.
    pub file: &'a str,
    /// What is in it.
    pub content: &'a str,
}

/// Where something is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At a place in the file.
    At {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The column, from 1, in characters.
        column: usize,
        /// How many characters of the line it is about; at least 1.
        width: usize,
        /// The line as it may be shown, and the column in it.
        shown: (String, usize),
    },
    /// The file as a whole.
    File(String),
    /// A variable of the environment.
    Variable(String),
    /// A flag.
    Flag(&'static str),
}

/// In a few words: file and line, variable, or flag.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { file, line, .. } => write!(f, "{}:{line}", visible(file)),
            Self::File(file) => f.write_str(&visible(file)),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// One thing that is wrong, or strange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// The key that it is about; empty when it is about the file.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// It is strange, and not wrong.
    pub warning: bool,
    /// Something is not there: where the file cannot be read to its end, that means nothing.
    pub missing: bool,
}

impl Problem {
    /// Something that is wrong.
    pub fn new(place: Place, key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            place,
            key: key.into(),
            message: message.into(),
            help: None,
            warning: false,
            missing: false,
        }
    }

    /// With what to do about it.
    pub fn help(mut self, help: Option<impl Into<String>>) -> Self {
        self.help = help.map(Into::into);
        self
    }

    /// For people, in several lines.
    pub fn render(&self) -> String {
        let word = if self.warning { "warning" } else { "error" };
        let mut text = format!("{word}: {}\n", visible(&self.headline()));
        // Writing to a String cannot fail.
        let _ = match &self.place {
            Place::At {
                file,
                line,
                column,
                width,
                shown,
            } => {
                let pad = " ".repeat(line.to_string().len());
                let (line_text, at) = shown;
                let before: String = line_text.chars().take(at - 1).collect();
                let before = visible(&before).chars().count();
                let caret = "^".repeat((*width).min(line_text.chars().count().saturating_sub(at - 1)).max(1));
                write!(
                    text,
                    "{pad}--> {}:{line}:{column}\n{pad} |\n{line} | {}\n{pad} | {}{caret}\n",
                    visible(file),
                    visible(line_text),
                    " ".repeat(before),
                )
            }
            Place::File(file) => writeln!(text, " --> {}", visible(file)),
            Place::Variable(name) => writeln!(text, " --> {} in the environment", visible(name)),
            Place::Flag(flag) => writeln!(text, " --> {flag}"),
        };
        if let Some(help) = &self.help {
            let _ = writeln!(text, " help: {}", visible(help));
        }
        text
    }

    /// What is wrong, and what to do about it, in a line each.
    pub fn in_a_line(&self) -> (String, Option<String>) {
        let from = match &self.place {
            _ if self.key.is_empty() => None,
            Place::At { .. } | Place::File(_) => None,
            Place::Variable(name) => Some(format!("given by {name}")),
            Place::Flag(flag) => Some(format!("given by {flag}")),
        };
        let help: Vec<_> = from.into_iter().chain(self.help.clone()).collect();
        (self.headline(), (!help.is_empty()).then(|| help.join("; ")))
    }

    fn headline(&self) -> String {
        match self.key.as_str() {
            "" => self.message.clone(),
            key => format!("{key}: {}", self.message),
        }
    }

    /// For programs.
    pub fn document(&self) -> serde_json::Value {
        let severity = if self.warning { "warning" } else { "error" };
        let mut document = json!({ "severity": severity, "key": self.key, "message": self.message, "help": self.help });
        match &self.place {
            Place::At { file, line, column, .. } => {
                document["file"] = json!(file);
                document["line"] = json!(line);
                document["column"] = json!(column);
            }
            Place::File(file) => document["file"] = json!(file),
            Place::Variable(name) => document["variable"] = json!(name),
            Place::Flag(flag) => document["flag"] = json!(flag),
        }
        document
    }

    /// The line that it is about.
    pub fn line(&self) -> Option<usize> {
        match self.place {
            Place::At { line, .. } => Some(line),
            _ => None,
        }
    }
}

impl Text<'_> {
    /// The place of a part of the file. What lies beyond its end is at its end.
    pub fn place(&self, span: &Range<usize>) -> Place {
        let mut start = span.start.min(self.content.len());
        while !self.content.is_char_boundary(start) {
            start -= 1;
        }
        let begin = self.content[..start].rfind('\n').map_or(0, |at| at + 1);
        let rest = &self.content[begin..];
        let text = rest.split('\n').next().unwrap_or_default().trim_end_matches('\r');
        // What is after the end of its line is at the end of it.
        let start = start.min(begin + text.len());
        let mut end = span.end.clamp(start, begin + text.len());
        while !self.content.is_char_boundary(end) {
            end -= 1;
        }
        let column = self.content[begin..start].chars().count() + 1;
        Place::At {
            file: self.file.to_owned(),
            line: self.line(start),
            column,
            width: self.content[start..end.max(start)].chars().count().max(1),
            shown: shown(text, column),
        }
    }

    /// The number of the line with this byte.
    pub fn line(&self, at: usize) -> usize {
        let head = &self.content.as_bytes()[..at.min(self.content.len())];
        head.iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

/// Tables that may stand on one line with their keys, none of which is a secret.
const PLAIN_TABLES: [&str; 3] = ["backoff", "retry", "breaker"];

/// A line as it may be shown, and a column in it: values are shown of keys that are known to hold no secret, all others are not. A
/// secret may well stand under a key that is misspelt.
fn shown(line: &str, column: usize) -> (String, usize) {
    let Some((head, value)) = line.split_once('=') else {
        return match line.trim_start().starts_with('[') || line.trim().is_empty() {
            true => (line.to_owned(), column),
            false => ("***".to_owned(), 1),
        };
    };
    let name = head.rsplit('.').next().unwrap_or(head).trim();
    let known = |name: &str| {
        let mut same = KEYS.iter().filter(|key| key.name() == name).peekable();
        same.peek().is_some() && same.all(|key| !key.hidden)
    };
    let plain = known(name) || PLAIN_TABLES.contains(&name);
    let is_key = head
        .trim()
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    let written = value.split('#').next().unwrap_or_default().trim();
    let is_number = written == "true" || written == "false" || written.parse::<f64>().is_ok();
    if (plain || is_number) && is_key && !value.contains("://") {
        return (line.to_owned(), column);
    }
    // The head is no key where quotes or brackets come before the first equals sign.
    let head = if is_key { head } else { "" };
    let most = head.chars().count() + 3;
    (format!("{head}= ***"), column.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(content: &str, span: Range<usize>) -> String {
        let text = Text {
            file: "f.toml",
            content,
        };
        Problem::new(text.place(&span), "a.b", "is bad").render()
    }

    #[test]
    fn a_problem_is_shown_in_its_line() {
        let content = "[outbox]\r\nlease_ms = 7 # größer\r\n";
        assert_eq!(
            rendered(content, 21..22),
            "error: a.b: is bad\n --> f.toml:2:12\n  |\n2 | lease_ms = 7 # größer\n  |            ^\n"
        );
        assert!(rendered(content, 500..501).contains("f.toml:3:1\n"));
        assert!(rendered("", 0..0).contains("f.toml:1:1\n"));
        assert!(rendered("ü", 1..2).contains("f.toml:1:1\n"));
    }

    #[test]
    fn no_line_shows_what_may_be_a_secret() {
        for line in [
            "url = \"postgres://u:s3cret@h/d\"",
            "url = postgres://u:s3cret@h/d",
            "secret = \"s3cret\"",
            "lease_ms = 1 url = \"postgres://u:s3cret@h/d\"",
            "headers = { authorization = \"s3cret\" }",
            "store = { url = \"s3cret\" }",
            "\"s3cret",
            "  s3cret\"\"\"",
            "\"s3cret=\" = 3",
            "to = \"https://h/?token=s3cret\"",
            "pin = 1 # s3cret://",
            "route = [{ headers = { a = \"s3cret\" } }]",
        ] {
            for at in 0..line.len() {
                let said = rendered(line, at..line.len());
                assert!(!said.contains("s3cret"), "{said}");
            }
        }
        assert!(rendered("lease = 15000", 0..5).contains("1 | lease = 15000\n  | ^^^^^\n"));
        assert!(rendered("rate = \"5/x\"", 7..12).contains("rate = \"5/x\"\n  |        ^^^^^\n"));
    }
}
