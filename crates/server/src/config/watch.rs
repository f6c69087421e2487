//! A configuration that is read again when one of its files changes, or when somebody asks (SIGHUP). A bad file is told, and leaves
//! what was in force: whoever watches keeps the last sound one.
//!
//! Editors replace files by renaming, Kubernetes by swapping a link some folders away. So every name on the way to a file is
//! watched, in the folder that holds it, and whatever happens there, all is read again and compared.

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher, event::AccessKind};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::Notify;

use super::{Loaded, Problems, Sources, load};

/// What a reading came to.
pub type Reading = Result<Loaded, Problems>;

/// A file that is being written is left alone until nothing has happened for so long, at most [`WAITS`] times.
const QUIET: Duration = Duration::from_millis(100);
const WAITS: u32 = 20;
/// Some file systems tell nothing of changes, and a folder may not be there yet: all is looked at so often in any case.
const POLL: Duration = Duration::from_secs(10);

/// Something that watches. See [`watch`].
pub struct Watch {
    sources: Sources,
    watcher: RecommendedWatcher,
    /// Names on the way to the files.
    names: Arc<Mutex<BTreeSet<PathBuf>>>,
    woken: Arc<Notify>,
    hangup: Hangup,
    poll: Duration,
    last: Reading,
    /// Somebody asked for a reading. Kept here, so that nothing is lost when [`Watch::next`] is dropped halfway.
    asked: bool,
    /// Something happened to a file.
    stirred: bool,
}

/// Watches the files of a configuration, of which this is the last reading.
///
/// ```ignore
/// let mut watch = config::watch::watch(sources, load(&sources))?;
/// loop {
///     match watch.next().await {
///         Ok(loaded) => { /* diff() with what is in force; take it up */ }
///         Err(problems) => { /* tell it; what is in force stays */ }
///     }
/// }
/// ```
pub fn watch(sources: Sources, last: Reading) -> io::Result<Watch> {
    watch_every(sources, last, POLL)
}

fn watch_every(sources: Sources, last: Reading, poll: Duration) -> io::Result<Watch> {
    let names: Arc<Mutex<BTreeSet<PathBuf>>> = Arc::default();
    let woken = Arc::new(Notify::new());
    let (its_names, its_woken) = (names.clone(), woken.clone());
    let heard = move |event: notify::Result<notify::Event>| {
        // What went wrong with watching is a reason to look.
        if event.map_or(true, |event| {
            is_change(event.kind) && concerns(&event.paths, &its_names)
        }) {
            its_woken.notify_one();
        }
    };
    let watcher = notify::recommended_watcher(heard).map_err(io::Error::other)?;
    let mut watch = Watch {
        sources,
        watcher,
        names,
        woken,
        hangup: Hangup::new()?,
        poll,
        last,
        asked: false,
        // What happened before anybody watched is found by looking once.
        stirred: true,
    };
    watch.follow();
    Ok(watch)
}

impl Watch {
    /// The next reading that says something new, or that was asked for. Dropping it halfway loses nothing.
    pub async fn next(&mut self) -> Reading {
        loop {
            if !self.stirred && !self.asked {
                tokio::select! {
                    () = self.hangup.heard() => self.asked = true,
                    () = self.woken.notified() => self.stirred = true,
                    () = tokio::time::sleep(self.poll) => {}
                }
            }
            if self.stirred {
                self.settle().await;
            }
            let sources = self.sources.clone();
            let reading = tokio::task::spawn_blocking(move || load(&sources)).await;
            // It cannot be cancelled, and does not panic; if it ever does, the next one may not.
            let Ok(reading) = reading else { continue };
            let news = std::mem::take(&mut self.asked) | !is_same(&self.last, &reading);
            self.stirred = false;
            self.last = reading;
            self.follow();
            if news {
                return self.last.clone();
            }
        }
    }

    /// Waits until nothing happens for a moment. Who asks meanwhile gets the same reading.
    async fn settle(&mut self) {
        for _ in 0..WAITS {
            tokio::select! {
                () = self.hangup.heard() => self.asked = true,
                () = self.woken.notified() => {}
                () = tokio::time::sleep(QUIET) => return,
            }
        }
    }

    /// Watches where the files are now. A folder that cannot be watched is left to the poll.
    fn follow(&mut self) {
        let files = match &self.last {
            Ok(loaded) => &loaded.files,
            Err(problems) => &problems.files,
        };
        let mut names = BTreeSet::new();
        files.iter().for_each(|file| names_to(file, &mut names, 0));
        let folders: BTreeSet<_> = names.iter().filter_map(|name| name.parent()).collect();
        for folder in folders {
            let _ = self.watcher.watch(folder, RecursiveMode::NonRecursive);
        }
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names;
    }
}

/// Whether two readings mean the same. In which line something stands does not matter, unless it is wrong.
fn is_same(one: &Reading, other: &Reading) -> bool {
    match (one, other) {
        (Ok(one), Ok(other)) => one.config == other.config && one.warnings == other.warnings,
        (Err(one), Err(other)) => one == other,
        _ => false,
    }
}

/// Reading a file is no change of it; we do that ourselves.
fn is_change(kind: EventKind) -> bool {
    !matches!(
        kind,
        EventKind::Access(AccessKind::Open(_) | AccessKind::Read | AccessKind::Any)
    )
}

/// Folders hold other files too, a SQLite database for instance.
fn concerns(paths: &[PathBuf], names: &Mutex<BTreeSet<PathBuf>>) -> bool {
    let names = names.lock().unwrap_or_else(PoisonError::into_inner);
    paths.is_empty()
        || paths
            .iter()
            .any(|path| names.contains(path) || names.iter().any(|name| name.parent() == Some(path)))
}

/// Links that lead in a circle end here.
const DEEPEST: u32 = 40;

/// Every name on the way to a file that can be made to lead elsewhere: the links, and the file itself.
fn names_to(file: &Path, names: &mut BTreeSet<PathBuf>, depth: u32) {
    let Ok(whole) = std::path::absolute(file) else { return };
    let mut walked = PathBuf::new();
    let mut parts = whole.components();
    while let Some(part) = parts.next() {
        walked.push(part);
        if let (Ok(target), true) = (fs::read_link(&walked), depth < DEEPEST) {
            names.insert(walked.clone());
            let rest = walked
                .parent()
                .unwrap_or(Path::new(""))
                .join(target)
                .join(parts.as_path());
            return names_to(&rest, names, depth + 1);
        }
    }
    names.insert(walked);
}

/// SIGHUP, where there is one.
struct Hangup {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

impl Hangup {
    fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            signal: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?,
        })
    }

    async fn heard(&mut self) {
        #[cfg(unix)]
        if self.signal.recv().await.is_some() {
            return;
        }
        std::future::pending().await
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Long enough that nothing in these tests is found by it.
    const NEVER: Duration = Duration::from_secs(24 * 3600);

    fn start(file: &Path) -> Watch {
        let sources = Sources {
            file: Some(file.to_owned()),
            ..Sources::default()
        };
        let last = load(&sources);
        watch_every(sources, last, NEVER).expect("to watch")
    }

    /// The next reading. What never comes fails.
    async fn next(watch: &mut Watch) -> Reading {
        let patience = Duration::from_secs(60);
        tokio::time::timeout(patience, watch.next()).await.expect("a reading")
    }

    /// The batch that the next reading says, or what is wrong with it.
    async fn batch(watch: &mut Watch) -> Result<u32, String> {
        let reading = next(watch).await;
        reading
            .map(|loaded| loaded.config.outbox.batch)
            .map_err(|problems| problems.all[0].message.clone())
    }

    fn text(batch: u32) -> String {
        format!("[outbox]\nbatch = {batch}\n")
    }

    #[tokio::test]
    async fn a_file_may_be_written_renamed_over_spoilt_repaired_and_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let (file, other) = (folder.path().join("posthouse.toml"), folder.path().join("new"));
        fs::write(&file, text(1)).unwrap();
        let mut watch = start(&file);
        fs::write(&file, text(2)).unwrap();
        assert_eq!(batch(&mut watch).await, Ok(2));
        fs::write(&other, text(3)).unwrap();
        fs::rename(&other, &file).unwrap();
        assert_eq!(batch(&mut watch).await, Ok(3));
        fs::write(&file, "[outbox]\nbatch = 0\n").unwrap();
        assert!(batch(&mut watch).await.unwrap_err().contains("from 1 to 10000"));
        // Back to what was in force: that it is repaired is news.
        fs::write(&file, text(3)).unwrap();
        assert_eq!(batch(&mut watch).await, Ok(3));
        fs::remove_file(&file).unwrap();
        assert!(batch(&mut watch).await.unwrap_err().contains("does not exist"));
        fs::write(&file, text(4)).unwrap();
        assert_eq!(batch(&mut watch).await, Ok(4));
        // Neither a comment nor another file is news; the next reading is that of the next change.
        fs::write(&file, format!("# a comment\n{}", text(4))).unwrap();
        fs::write(folder.path().join("posthouse.db"), "x").unwrap();
        tokio::time::timeout(QUIET * 5, watch.next())
            .await
            .expect_err("no news");
        fs::write(&file, text(5)).unwrap();
        assert_eq!(batch(&mut watch).await, Ok(5));
    }

    /// As Kubernetes does it: the file is a link through a link to a folder, which is swapped.
    #[tokio::test]
    async fn a_link_on_the_way_may_be_swapped() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (version, batch) in [("..1", 1), ("..2", 2), ("..3", 3)] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("posthouse.toml"), text(batch)).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/posthouse.toml", at("posthouse.toml")).unwrap();
        let mut watch = start(&at("posthouse.toml"));
        for (version, expected) in [("..2", 2), ("..3", 3)] {
            symlink(version, at("..tmp")).unwrap();
            fs::rename(at("..tmp"), at("..data")).unwrap();
            assert_eq!(batch(&mut watch).await, Ok(expected));
        }
        fs::write(at("..3").join("posthouse.toml"), text(4)).unwrap();
        assert_eq!(batch(&mut watch).await, Ok(4));
    }

    #[tokio::test]
    async fn a_file_with_a_secret_is_watched_too() {
        let (folder, secrets) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (file, secret) = (folder.path().join("posthouse.toml"), secrets.path().join("key"));
        let route = format!("[[route]]\ntopic = \"a\"\nto = \"https://a.example/\"\nsecret_file = {secret:?}\n");
        fs::write(&file, route).unwrap();
        let mut watch = start(&file);
        // It is not there yet, then it may be read by others, then it is sound, then it changes.
        fs::write(&secret, "one").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
        let problems = next(&mut watch).await.unwrap_err();
        assert!(problems.all[0].message.contains("chmod 600"), "{problems:?}");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let signs = |loaded: Loaded| loaded.config.routes[0].secrets[0].expose().to_owned();
        assert_eq!(next(&mut watch).await.map(signs), Ok("one".to_owned()));
        fs::write(&secret, "two").unwrap();
        assert_eq!(next(&mut watch).await.map(signs), Ok("two".to_owned()));
    }

    #[tokio::test]
    async fn nothing_is_lost_when_nobody_waits_to_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("posthouse.toml");
        fs::write(&file, text(1)).unwrap();
        let mut watch = start(&file);
        tokio::time::timeout(QUIET * 3, watch.next())
            .await
            .expect_err("no news");
        fs::write(&file, text(2)).unwrap();
        for _ in 0..20 {
            let _ = tokio::time::timeout(Duration::from_millis(2), watch.next())
                .await
                .map(|_| panic!("too early"));
        }
        assert_eq!(batch(&mut watch).await, Ok(2));
    }

    #[test]
    fn links_in_a_circle_end() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink("b", at("a")).unwrap();
        symlink("a", at("b")).unwrap();
        let mut names = BTreeSet::new();
        names_to(&at("a"), &mut names, 0);
        assert!(names.contains(&at("a")) && names.contains(&at("b")), "{names:?}");
    }
}
