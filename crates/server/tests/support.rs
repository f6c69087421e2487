//! Running the program, and stores to run it on.

use serde_json::Value;
use std::{
    ops::{Deref, DerefMut},
    path::Path,
    process::{Child, Command, Output, Stdio},
};
use tempfile::TempDir;
use tokio_postgres::NoTls;

/// What a run of the program left behind.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// It ended with this code; what it said on standard error.
    #[track_caller]
    pub fn failed_with(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert_eq!(self.stdout, "", "a failure is not data: {self:#?}");
        &self.stderr
    }

    /// It succeeded; what it wrote on standard output.
    #[track_caller]
    pub fn ok(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:#?}");
        &self.stdout
    }

    /// It succeeded; its lines of JSON.
    #[track_caller]
    pub fn json(&self) -> Vec<Value> {
        self.ok()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A process that does not outlive its test, whichever way that ends. What it says is kept for the test to read.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(piped.spawn().unwrap())
    }

    /// By the shell, which has it built in: the program of that name is not on every machine.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Waits for its end; for one that says little.
    pub fn ended(mut self) -> Run {
        let stdout = std::io::read_to_string(self.stdout.take().unwrap()).unwrap();
        let stderr = std::io::read_to_string(self.stderr.take().unwrap()).unwrap();
        let code = self.wait().unwrap().code();
        Run { code, stdout, stderr }
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is no failure.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program, in an environment that says nothing about stores or colours.
pub fn posthouse() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthouse"));
    command
        .env_remove("POSTHOUSE_STORE__URL")
        .env_remove("POSTHOUSE_CONFIG")
        .env_remove("NO_COLOR")
        .stdin(std::process::Stdio::null());
    command
}

/// Runs the program without naming a store.
pub fn run(args: &[&str]) -> Run {
    posthouse().args(args).output().unwrap().into()
}

/// A store of our own, which goes away with this value.
pub struct Place {
    pub url: String,
    kind: Kind,
}

enum Kind {
    Sqlite(TempDir),
    Postgres {
        server: String,
        schema: String,
    },
    /// Goes away with its server.
    Elsewhere,
}

impl Place {
    /// A SQLite file that does not exist yet.
    pub fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("test.db").display());
        Self {
            url,
            kind: Kind::Sqlite(folder),
        }
    }

    /// A schema that does not exist yet, in the PostgreSQL database of the tests.
    pub fn postgres() -> Self {
        let server = server();
        let schema = format!("t_{}", uuid::Uuid::new_v4().simple());
        let url = format!("{server}?schema={schema}");
        Self {
            url,
            kind: Kind::Postgres { server, schema },
        }
    }

    /// A database on a server of the test's own.
    pub fn elsewhere(url: String) -> Self {
        let kind = Kind::Elsewhere;
        Self { url, kind }
    }

    /// One of each kind, with the schema made.
    pub fn both() -> [Self; 2] {
        let places = [Self::sqlite(), Self::postgres()];
        places
            .iter()
            .for_each(|place| drop(place.run(&["migrate"]).ok().to_owned()));
        places
    }

    /// A folder to put files in.
    pub fn folder(&self) -> &Path {
        match &self.kind {
            Kind::Sqlite(folder) => folder.path(),
            Kind::Postgres { .. } | Kind::Elsewhere => panic!("a schema has no folder"),
        }
    }

    pub fn is_sqlite(&self) -> bool {
        matches!(self.kind, Kind::Sqlite(_))
    }

    /// The name of its schema.
    pub fn schema(&self) -> &str {
        match &self.kind {
            Kind::Sqlite(_) | Kind::Elsewhere => panic!("it has no schema of its own"),
            Kind::Postgres { schema, .. } => schema,
        }
    }

    /// Runs statements in the store itself; those for PostgreSQL are written for the schema `posthouse`.
    pub fn sql(&self, statements: &str) {
        match &self.kind {
            Kind::Sqlite(folder) => {
                let db = rusqlite::Connection::open(folder.path().join("test.db")).unwrap();
                db.execute_batch(statements).unwrap();
            }
            Kind::Postgres { server, schema } => {
                sql(server, &statements.replace("posthouse.", &format!("{schema}.")));
            }
            Kind::Elsewhere => sql(&self.url, statements),
        }
    }

    /// Runs the program on this store.
    pub fn run(&self, args: &[&str]) -> Run {
        posthouse()
            .args(["--store", &self.url])
            .args(args)
            .output()
            .unwrap()
            .into()
    }

    /// Enqueues, and answers the id.
    #[track_caller]
    pub fn enqueue(&self, args: &[&str]) -> String {
        self.run(&[&["enqueue"], args].concat()).ok().trim_end().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Kind::Postgres { server, schema } = &self.kind {
            sql(server, &format!("DROP SCHEMA IF EXISTS {schema} CASCADE"));
        }
    }
}

/// The PostgreSQL server of the tests. Required: a suite that skips a store proves nothing about it.
pub fn server() -> String {
    std::env::var("POSTHOUSE_TEST_POSTGRES")
        .expect("POSTHOUSE_TEST_POSTGRES names no PostgreSQL server; ./test.sh starts one")
}

/// Runs statements on the server of the tests.
pub fn sql(server: &str, statements: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(server, NoTls).await.unwrap();
        let work = tokio::spawn(connection);
        client.batch_execute(statements).await.unwrap();
        drop(client);
        work.await.unwrap().unwrap();
    });
}
