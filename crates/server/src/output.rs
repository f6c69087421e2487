//! Where text goes: data to standard output, everything that is said about it to standard error.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use posthouse::{MessageId, Timestamp};
use serde::Serialize;
use serde_json::json;
use std::{
    cell::RefCell,
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::{
    cli::{Color, Global},
    config::Problem,
    exit::{Exit, Failure},
};

/// A table is no wider than this, and neither is anything else that we break.
pub const WIDTH: u16 = 100;

/// The two streams, and how they are to be written.
#[derive(Clone, Debug)]
pub struct Output {
    /// Data is for programs.
    pub json: bool,
    quiet: bool,
    data_in_color: bool,
    notes_in_color: bool,
    /// The message in hand and those that come after it.
    in_hand: RefCell<Vec<MessageId>>,
}

impl Output {
    /// As the flags say.
    pub fn new(global: &Global) -> Self {
        Self {
            json: global.json,
            quiet: global.quiet,
            data_in_color: global.color.is_on(io::stdout().is_terminal()),
            notes_in_color: global.color.is_on(io::stderr().is_terminal()),
            in_hand: RefCell::default(),
        }
    }

    /// For a program, when the flags could not be read.
    pub fn for_programs() -> Self {
        Self {
            json: true,
            quiet: false,
            data_in_color: false,
            notes_in_color: false,
            in_hand: RefCell::default(),
        }
    }

    /// Writes lines of data. The last one needs no line end.
    pub fn data(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let written = write!(stdout, "{text}{end}").and_then(|()| stdout.flush());
        written.map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe => Failure::reader_gone(),
            _ => Failure::new(format!("standard output cannot be written: {e}")),
        })
    }

    /// Writes one document as one line.
    pub fn document(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(|e| Failure::new(e.to_string()))?;
        self.data(&text)
    }

    /// Tells how far long work is, on a terminal, in one line that is written again and again; empty to remove it.
    pub fn progress(&self, text: &str) {
        if !self.quiet && !self.json && io::stderr().is_terminal() {
            let mut stderr = io::stderr().lock();
            // As for everything that is said: when it cannot be written, there is nobody to tell.
            let _ = write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush());
        }
    }

    /// Says something about the data.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            say(text);
        }
    }

    /// One field to a line, in words that are safe to show; what is not set is left out.
    pub fn fields(&self, lines: impl IntoIterator<Item = (&'static str, Option<String>)>) -> String {
        let shown = lines.into_iter().filter_map(|(name, value)| {
            let name = self.paint(Paint::Dim, &format!("{name:12}"));
            Some(format!("{name}  {}\n", visible(&value?)))
        });
        shown.collect()
    }

    /// Says that there may be more of a list, and how to get it: to programs as a line of JSON, which `--quiet` does not silence.
    /// `stopped` is what ended this page: `limit` or `patience`.
    pub fn next_page(&self, before: i64, stopped: &str, text: &str) {
        self.next(&json!({ "before": before, "stopped": stopped }), text);
    }

    /// The same, where the next page begins in another way.
    pub fn next(&self, how: &serde_json::Value, text: &str) {
        self.aside(&json!({ "next": how }), text);
    }

    /// Says something beside the data: to programs as a line of JSON.
    pub fn aside(&self, how: &serde_json::Value, text: &str) {
        if self.json {
            say(&how.to_string());
        } else {
            self.note(text);
        }
    }

    /// Remembers which messages are still to be done, the one in hand in front: a failure names those that were not tried.
    pub fn in_hand(&self, ids: &[MessageId]) {
        self.in_hand.replace(ids.to_vec());
    }

    /// Says what is wrong, or strange, in the configuration.
    pub fn problem(&self, problem: &Problem) {
        let word = if problem.warning { "warning" } else { "error" };
        if self.json {
            return say(&json!({ word: problem.document() }).to_string());
        }
        if problem.warning && self.quiet {
            return;
        }
        let paint = if problem.warning { Paint::Cyan } else { Paint::Red };
        let mark = format!("{word}:");
        let text = problem.render();
        say(&text
            .trim_end()
            .replacen(&mark, &self::paint(self.notes_in_color, paint, &mark), 1));
    }

    /// Says why it failed. Not silenced by anything.
    pub fn failure(&self, failure: &Failure) {
        if failure.exit == Exit::Ok {
            return;
        }
        let in_hand = self.in_hand.borrow();
        let not_tried = in_hand.get(1..).unwrap_or_default();
        // Whoever interrupts does not wait for the answer.
        let unknown = in_hand.first().filter(|_| failure.exit == Exit::Interrupted);
        if self.json {
            let Failure {
                code,
                message,
                help,
                retryable,
                problems,
                ..
            } = failure;
            let mut error = json!({"code": code, "message": message, "help": help, "retryable": retryable});
            if !problems.is_empty() {
                error["problems"] = problems.iter().map(Problem::document).collect();
            }
            if !not_tried.is_empty() {
                error["not_tried"] = json!(not_tried);
            }
            if let Some(id) = unknown {
                error["unknown"] = json!([id]);
            }
            return say(&json!({ "error": error }).to_string());
        }
        failure.problems.iter().for_each(|problem| self.problem(problem));
        let mark = paint(self.notes_in_color, Paint::Red, "error:");
        say(&format!("{mark} {}", visible(&failure.message)));
        let more = |word: &str, text: &str| {
            say(&format!(
                "{} {}",
                paint(self.notes_in_color, Paint::Cyan, word),
                visible(text)
            ));
        };
        if let Some(help) = &failure.help {
            more(" help:", help);
        }
        if let Some(id) = unknown {
            more(" may have been done:", &id.to_string());
        }
        if !not_tried.is_empty() {
            let ids: Vec<_> = not_tried.iter().map(MessageId::to_string).collect();
            more(" not tried:", &ids.join(" "));
        }
    }

    /// Data in colour, where colours are on.
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        self::paint(self.data_in_color, paint, text)
    }

    /// Columns under a heading, without lines; each item is one line.
    pub fn table(&self, heading: &[&str], items: Vec<Vec<String>>) -> String {
        self.render(plain_table(heading, items))
    }

    /// The same for items that end in long text, which is broken to stay within [`WIDTH`].
    pub fn broken_table(&self, heading: &[&str], items: Vec<Vec<String>>) -> String {
        let mut table = plain_table(heading, items);
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(WIDTH);
        let last = heading.len().saturating_sub(1);
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_constraint(match at < last {
                true => ColumnConstraint::ContentWidth,
                false => ColumnConstraint::LowerBoundary(Width::Fixed(32)),
            });
        }
        self.render(table)
    }

    fn render(&self, table: Table) -> String {
        let mut text = String::new();
        for (at, line) in table.lines().enumerate() {
            let line = line.trim_end();
            let line = if at == 0 {
                self.paint(Paint::Dim, line)
            } else {
                line.to_owned()
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

fn plain_table(heading: &[&str], items: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(heading.to_vec())
        .add_rows(items);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    table
}

/// Standard error is the last resort: when it cannot be written, there is nobody left to tell.
fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The sum of long work. It is told however the work ends: also when an error or Ctrl-C drops it.
pub struct Tally<T, F: Fn(&T, bool) -> Result<(), Failure>> {
    /// What was done so far.
    pub sum: T,
    tell: F,
    told: bool,
}

impl<T, F: Fn(&T, bool) -> Result<(), Failure>> Tally<T, F> {
    /// Begins with a sum. `tell` also learns whether all of the work was done.
    pub fn new(sum: T, tell: F) -> Self {
        let told = false;
        Self { sum, tell, told }
    }

    /// Tells the sum of work that came to an end.
    pub fn end(mut self, complete: bool) -> Result<(), Failure> {
        self.told = true;
        (self.tell)(&self.sum, complete)
    }
}

impl<T, F: Fn(&T, bool) -> Result<(), Failure>> Drop for Tally<T, F> {
    fn drop(&mut self) {
        if !self.told {
            // Why it ended is said elsewhere, and matters more.
            let _ = (self.tell)(&self.sum, false);
        }
    }
}

/// What colours mean here.
#[derive(Clone, Copy, Debug)]
pub enum Paint {
    /// What is being told.
    Bold,
    /// What matters less.
    Dim,
    /// What went wrong.
    Red,
    /// What went well.
    Green,
    /// What to type.
    Cyan,
}

fn paint(on: bool, paint: Paint, text: &str) -> String {
    let code = match paint {
        Paint::Bold => 1,
        Paint::Dim => 2,
        Paint::Red => 31,
        Paint::Green => 32,
        Paint::Cyan => 36,
    };
    if on {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

impl Color {
    fn is_on(self, terminal: bool) -> bool {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
        }
    }
}

/// Text from a store, safe to show: what could steer a terminal, or hide or turn around other text, is written out.
pub fn visible(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if steers(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
        shown
    })
}

/// The same, cut to a number of columns of the terminal; some characters take two.
pub fn cut(text: &str, columns: usize) -> String {
    let shown = visible(text);
    if shown.width() <= columns {
        return shown;
    }
    let mut left = columns.saturating_sub(1);
    let fits = |c: &char| {
        let rest = left.checked_sub(c.width().unwrap_or(0));
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    let head: String = shown.chars().take_while(fits).collect();
    format!("{head}…")
}

/// The same, or a dash for nothing.
pub fn cut_or_dash(text: &str, columns: usize) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        cut(text, columns)
    }
}

/// The time, to tell ages by. The store's clock is what everything is judged by; this one is for reading only.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// `3s ago`, `in 5m`, `now`. Ages are rounded down, waits up: neither promises too much.
pub fn relative(to: Timestamp, now: Timestamp) -> String {
    let (past, future) = (now.since(to), to.since(now));
    if past.as_secs() > 0 {
        format!("{} ago", rough(past.as_secs(), |n, unit| n / unit))
    } else if future > Duration::ZERO {
        format!(
            "in {}",
            rough(future.as_secs() + u64::from(future.subsec_nanos() > 0), u64::div_ceil)
        )
    } else {
        "now".to_owned()
    }
}

/// Seconds, in the largest unit that makes at least two.
fn rough(seconds: u64, divide: fn(u64, u64) -> u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", divide(seconds, 60)),
        7200..172_800 => format!("{}h", divide(seconds, 3600)),
        _ => format!("{}d", divide(seconds, 86_400)),
    }
}

/// In lines of at most this many characters, as far as its words allow.
pub fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A short duration, as an attempt takes.
pub fn took(duration: Duration) -> String {
    match duration.as_millis() {
        ms @ 0..10_000 => format!("{ms} ms"),
        _ => rough(duration.as_secs(), |n, unit| n / unit),
    }
}

/// `21 B`, `256 KiB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0).replace(".0 ", " "),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0).replace(".0 ", " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_steer_a_terminal_is_written_out() {
        assert_eq!(visible("a\x1b[31mb\n\0"), "a\\u{1b}[31mb\\n\\u{0}");
        assert_eq!(visible("\u{9b}2J \u{202e}abc"), "\\u{9b}2J \\u{202e}abc");
        assert_eq!(visible("größe 注文 🛒"), "größe 注文 🛒");
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        assert_eq!(cut("größer", 4), "grö…");
        assert_eq!(cut("größer", 6), "größer");
        assert_eq!(cut("注文注文", 8), "注文注文");
        assert_eq!(cut("注文注文", 7), "注文注…");
        assert_eq!(cut("注文注文", 6), "注文…");
    }

    #[test]
    fn ages_are_told_in_one_unit() {
        let now = Timestamp::from_micros(1_000_000_000_000_000);
        let at = |seconds: i64| relative(Timestamp::from_micros(now.as_micros() + seconds * 1_000_000), now);
        assert_eq!(
            [at(0), at(-3), at(-119), at(-120)],
            ["now", "3s ago", "119s ago", "2m ago"]
        );
        assert_eq!(
            [at(-7200), at(-200_000), at(300), at(299)],
            ["2h ago", "2d ago", "in 5m", "in 5m"]
        );
    }

    #[test]
    fn sizes_are_told_in_binary_units() {
        assert_eq!(
            [size(21), size(262_144), size(1536), size(3 << 20)],
            ["21 B", "256 KiB", "1.5 KiB", "3 MiB"]
        );
    }
}
