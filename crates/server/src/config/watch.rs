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

    /// Waits until nothing happens for a moment.
    async fn settle(&self) {
        for _ in 0..WAITS {
            if tokio::time::timeout(QUIET, self.woken.notified()).await.is_err() {
                return;
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
