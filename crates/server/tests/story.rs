//! A terminal in which an operator types, on a store whose clock stands still: what is typed, what is printed and how it ended
//! become one text, the same on every day.
//!
//! Ids are given, times are told as if the store had begun at [`BEGINNING`], and everything happens three and a half hours ago, so
//! that ages come out the same however long a test takes.

use posthouse::{AnyStore, Claim, Claimed, Outcome, RetryPolicy, Settlement, Timestamp, presence::Relay};
use std::{
    fmt::Write as _,
    future::Future,
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tempfile::TempDir;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// 2030-01-01T00:00:00Z, in seconds.
const BEGINNING: i64 = 1_893_456_000;

/// A store, and what was typed and printed.
pub struct Story {
    folder: TempDir,
    /// When the store's clock began, in seconds.
    base: i64,
    told: String,
}

/// The id of the n-th message.
pub fn id(n: u32) -> String {
    format!("01976d0c-0000-7000-8000-{n:012}")
}

impl Story {
    /// Before there is a store.
    pub fn before() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Self {
            folder: tempfile::tempdir().unwrap(),
            base: i64::try_from(now.as_secs()).unwrap() - (3 * 3600 + 1800),
            told: String::new(),
        }
    }

    /// With an empty store.
    pub fn new() -> Self {
        let story = Self::before();
        assert!(story.run("posthouse migrate").2 == 0);
        story.sql(
            "CREATE TABLE test_clock (now INTEGER NOT NULL); INSERT INTO test_clock VALUES (0);
             DROP VIEW posthouse_clock; CREATE VIEW posthouse_clock (now) AS SELECT now FROM test_clock",
        );
        story.at(0);
        story
    }

    /// Goes on in another place, with what was told so far.
    pub fn followed_by(self, next: Self) -> Self {
        Self {
            told: self.told + &next.told,
            ..next
        }
    }

    /// Sets the store's clock to so many seconds after its beginning.
    pub fn at(&self, seconds: i64) {
        self.sql(&format!(
            "UPDATE test_clock SET now = {}",
            (self.base + seconds) * 1_000_000
        ));
    }

    pub fn sql(&self, statements: &str) {
        let db = rusqlite::Connection::open(self.folder.path().join("posthouse.db")).unwrap();
        db.execute_batch(statements).unwrap();
    }

    /// Writes a file where the operator is, which everybody may read.
    pub fn file(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.folder.path().join("posthouse.db").display())
    }

    /// Does something to the store that no command does: what relays do.
    pub fn relay<T, F: Future<Output = T>>(&self, work: impl FnOnce(AnyStore) -> F) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let url = self.url();
        runtime.block_on(async { work(AnyStore::open(&url).await.unwrap()).await })
    }

    /// Enqueues the n-th message, with these flags.
    pub fn enqueue(&self, n: u32, flags: &str) {
        let (_, stderr, code) = self.run(&format!("posthouse enqueue --id {} --data 1 {flags}", id(n)));
        assert_eq!(code, 0, "{stderr}");
    }

    /// Leases everything that is due, for that many hours.
    pub fn claim(&self, worker: &str, hours: u64) -> Vec<Claimed> {
        let claim = Claim::new(worker, 100, Duration::from_secs(hours * 3600));
        self.relay(|any| async move { any.store().claim(&claim).await.unwrap() })
    }

    /// Everything that is due is sent, and this comes of it.
    pub fn send(&self, worker: &str, outcome: &Outcome) {
        let policy = RetryPolicy {
            max_attempts: Some(1),
            ..RetryPolicy::default()
        };
        let batch: Vec<_> = self
            .claim(worker, 1)
            .iter()
            .map(|one| Settlement::of(&one.lease, outcome.clone(), &policy, 0.5))
            .collect();
        let verdicts = self.relay(|any| async move { any.store().settle(&batch).await.unwrap() });
        assert!(!verdicts.is_empty() && verdicts.iter().all(|verdict| verdict.is_settled()));
    }

    /// A relay tells of itself.
    pub fn heartbeat(&self, relay: Relay) {
        let ttl = Duration::from_secs(12 * 3600);
        self.relay(|any| async move { any.store().heartbeat(&relay, ttl).await.unwrap() });
    }

    /// Begins a new paragraph of the story.
    pub fn say(&mut self, words: &str) {
        let _ = writeln!(self.told, "\n# {words}");
    }

    /// Types a line, and puts down what it prints. Lines on standard error are marked.
    pub fn type_in(&mut self, line: &str) {
        let (stdout, stderr, code) = self.run(line);
        let stdout = if line.contains("--json") {
            pretty(&stdout)
        } else {
            stdout
        };
        let _ = write!(self.told, "\n$ {line}\n{stdout}");
        for line in stderr.lines() {
            let _ = writeln!(self.told, "2> {line}");
        }
        if code != 0 {
            let _ = writeln!(self.told, "(exit {code})");
        }
    }

    /// Types several lines.
    pub fn type_all(&mut self, lines: &[&str]) {
        lines.iter().for_each(|line| self.type_in(line));
    }

    /// What a line prints, and its exit code, with times as if it were the beginning.
    pub fn run(&self, line: &str) -> (String, String, i32) {
        let program = Path::new(env!("CARGO_BIN_EXE_posthouse")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        let output = Command::new("sh")
            .args(["-c", line])
            .current_dir(self.folder.path())
            .env("PATH", path)
            .env("USER", "anna")
            .env_remove("POSTHOUSE_ACTOR")
            .env_remove("POSTHOUSE_STORE__URL")
            .env_remove("POSTHOUSE_CONFIG")
            .env_remove("NO_COLOR")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let text = |bytes| self.at_beginning(&String::from_utf8(bytes).unwrap());
        (text(output.stdout), text(output.stderr), output.status.code().unwrap())
    }

    /// Compares the whole with the file of this name.
    #[track_caller]
    pub fn ends_as(&self, name: &str) {
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(name, self.told.trim_start()));
    }

    /// A text with its times moved to the beginning.
    fn at_beginning(&self, text: &str) -> String {
        let length = "2030-01-01T00:00:00Z".len();
        let mut moved = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let time = rest
                .get(..length)
                .and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok());
            if let Some(time) = time {
                let at = BEGINNING + time.unix_timestamp() - self.base;
                let _ = write!(moved, "{}", Timestamp::from_micros(at * 1_000_000));
                rest = &rest[length..];
            } else {
                moved.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
        moved
    }
}

/// Lines of JSON, as people read them.
fn pretty(lines: &str) -> String {
    lines.lines().fold(String::new(), |mut text, line| {
        let value: serde_json::Value = serde_json::from_str(line).expect("one document to a line");
        let _ = writeln!(text, "{value:#}");
        text
    })
}
