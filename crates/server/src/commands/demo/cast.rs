//! Who plays in the demo: a place for the database, and relays that are processes of their own.

use posthouse::Invalid;
use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

use crate::exit::Failure;

/// Nothing here takes longer, unless something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Where the database is: in a folder that goes away with this value, or in a file to keep.
pub struct Place {
    pub file: PathBuf,
    pub kept: bool,
    /// Also holds the relays' configuration.
    folder: TempDir,
}

impl Place {
    pub fn new(keep: Option<&Path>) -> Result<Self, Failure> {
        if let Some(file) = keep {
            check(file)?;
        }
        let folder = tempfile::Builder::new().prefix("posthouse-demo-").tempdir()?;
        Ok(Self {
            file: keep.map_or_else(|| folder.path().join("demo.db"), Path::to_owned),
            kept: keep.is_some(),
            folder,
        })
    }

    /// Writes what the relay of this name is to do, and answers where.
    pub fn configure(&self, name: &str, to: &str, lease: Duration) -> Result<PathBuf, Failure> {
        // Relays read paths as they are written, so they get one that begins at the root.
        let store = format!("sqlite://{}", std::path::absolute(&self.file)?.display());
        let text = format!(
            r#"[store]
url = {store:?}
[outbox]
name = {name:?}
lease_ms = {lease}
poll_ms = 100
grace_ms = 1000
backoff = {{ base_ms = 300, factor = 2.0, jitter = 0.0 }}
[explicit]
http = ["127.0.0.1"]
allow = ["127.0.0.1"]
[admin]
bind = "off"
[log]
level = "error"
[[route]]
topic = "order.*"
to = {to:?}
name = "warehouse"
timeout_ms = {timeout}
secret_env = {SECRET:?}
allow_private = true
"#,
            lease = lease.as_millis(),
            timeout = (lease * 4 / 5).as_millis(),
        );
        let file = self.folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, text)?;
        Ok(file)
    }
}

fn check(file: &Path) -> Result<(), Failure> {
    let refused = |problem: String| Failure::from(Invalid::new("keep", problem));
    if file.exists() {
        let failure = refused(format!("{} exists already", file.display()));
        return Err(failure.help("name a new file; the demo writes into nobody's data"));
    }
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(refused(format!("there is no folder {}", folder.display())))
        }
        _ => Ok(()),
    }
}

/// The variable that holds the secret which relays sign with.
const SECRET: &str = "DEMO_WAREHOUSE_SECRET";

/// `posthouse relay`, this very program, as a process. It ends with this value, and with this process however that ends: its
/// standard input is a pipe that nobody else holds.
pub struct RelayProcess(Child);

impl RelayProcess {
    pub fn start(config: &Path, secret: &str) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(format!("the demo could not start a relay: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        // What is set for the user's own relays is not meant for these.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("POSTHOUSE_") {
                command.env_remove(name);
            }
        }
        let child = command
            .arg("--config")
            .arg(config)
            .args(["--quiet", "relay", "--until-stdin-closes"])
            .env(SECRET, secret)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        Ok(Self(child))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Fails if it has ended by itself; it has said why.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => Err(Failure::new(format!("a relay of the demo has ended: {status}"))),
        }
    }

    /// SIGKILL: it has no chance to say or to give back anything.
    pub fn kill(mut self) -> Result<(), Failure> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// Lets it end what is under way, by closing its standard input.
    pub async fn stop(mut self) -> Result<(), Failure> {
        drop(self.0.stdin.take());
        let since = Instant::now();
        while self.0.try_wait()?.is_none() {
            found(since.elapsed() < PATIENCE, "the end of a relay that was told to stop")?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        // One that has ended already is no failure.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The demo tells only what it has seen.
pub fn found(is_so: bool, what: &str) -> Result<(), Failure> {
    if is_so {
        Ok(())
    } else {
        Err(Failure::new(format!("the demo did not find {what}")))
    }
}
