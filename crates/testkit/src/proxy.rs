//! What stands between a client and a server on this machine, and can go wrong there: connections that are slow, or silent, or cut.
//!
//! To find out what a program makes of an answer that it never got, the answer must be lost at one exact place. Told to
//! [lose](Proxy::lose) a word, the proxy passes bytes on until the word comes by; then it either keeps it (the server never hears it) or
//! passes it on and keeps the answer (the server has done it, and the client does not know). Both ends see their connection end.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};

/// The most connections at a time, silent ones among them; more wait.
const CONNECTIONS: usize = 1024;
/// How long the server may take to answer what the client will not hear.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is lost when the word comes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// The word itself, and everything after it.
    Request,
    /// The answer to it.
    Answer,
}

/// A proxy that runs until it is dropped. It listens on the loopback address only.
pub struct Proxy {
    /// Where clients connect.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _running: JoinSet<()>,
}

struct Shared {
    server: Mutex<SocketAddr>,
    weather: watch::Sender<Weather>,
    connections: AtomicU64,
    loss: Mutex<Option<Loss>>,
    lost: AtomicUsize,
}

/// What happens to bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Weather {
    /// Connections from before this one are silent for ever, and nobody closes them.
    silent_before: u64,
    /// New ones too.
    silent: bool,
    /// How long each piece is kept.
    delay: Duration,
    /// How often all connections were cut.
    cuts: u64,
}

struct Loss {
    word: Vec<u8>,
    lost: Lost,
    /// How often it is still to be lost.
    left: usize,
}

impl Proxy {
    /// Stands before the server at this address, and passes everything on.
    pub async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server: Mutex::new(server),
            weather: watch::Sender::default(),
            connections: AtomicU64::new(0),
            loss: Mutex::default(),
            lost: AtomicUsize::new(0),
        });
        let mut running = JoinSet::new();
        running.spawn(accept(listener, shared.clone()));
        Self {
            address,
            shared,
            _running: running,
        }
    }

    /// From now on, cuts the first `times` connections on which the client says `word`.
    pub fn lose(&self, word: &str, lost: Lost, times: usize) {
        let word = word.as_bytes().to_vec();
        let left = times;
        *self.shared.loss.lock().unwrap() = Some(Loss { word, lost, left });
    }

    /// How many connections it has cut at the word.
    pub fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// From now on everything new goes there.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.shared.server.lock().unwrap() = server;
    }

    /// Nothing passes any more, on no connection, and nobody is told.
    pub fn fall_silent(&self) {
        self.shared.weather.send_modify(|weather| weather.silent = true);
    }

    /// What is connected stays silent for ever; whoever connects anew is heard.
    pub fn hear_new_ones(&self) {
        let connections = self.shared.connections.load(Ordering::SeqCst);
        self.shared.weather.send_modify(|weather| {
            weather.silent_before = connections;
            weather.silent = false;
        });
    }

    /// Each piece is kept for so long.
    pub fn delay(&self, delay: Duration) {
        self.shared.weather.send_modify(|weather| weather.delay = delay);
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.shared.weather.send_modify(|weather| weather.cuts += 1);
    }
}

/// Dropped, it ends all connections.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    // Ends: when the proxy is dropped, or nobody can connect any more.
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(pass(client, shared.clone()));
        while connections.try_join_next().is_some() {}
        while connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
    }
}

/// Passes bytes on in both directions until one end closes, the word comes by, or all are cut.
async fn pass(client: TcpStream, shared: Arc<Shared>) {
    let number = shared.connections.fetch_add(1, Ordering::SeqCst);
    let mut weather = shared.weather.subscribe();
    let cuts = weather.borrow().cuts;
    let at = *shared.server.lock().unwrap();
    let Ok(server) = TcpStream::connect(at).await else {
        return;
    };
    let way = || Way {
        number,
        weather: shared.weather.subscribe(),
    };
    let ((from_client, to_client), (mut from_server, to_server)) = (client.into_split(), server.into_split());
    let lost = tokio::select! {
        lost = way().requests(from_client, to_server, &shared) => lost,
        () = way().answers(&mut from_server, to_client) => None,
        _ = weather.wait_for(|weather| weather.cuts > cuts) => None,
    };
    if lost == Some(Lost::Answer) {
        // The server has heard the word; its answer says that it has done it.
        let mut answer = [0; 1024];
        let _ = tokio::time::timeout(PATIENCE, from_server.read(&mut answer)).await;
    }
    if lost.is_some() {
        shared.lost.fetch_add(1, Ordering::SeqCst);
    }
}

/// One direction of a connection.
struct Way {
    number: u64,
    weather: watch::Receiver<Weather>,
}

impl Way {
    /// Waits for as long as a piece is kept. For one that is silent for ever, that is until the proxy is dropped.
    async fn keep(&mut self) {
        let delay = self.weather.borrow().delay;
        tokio::time::sleep(delay).await;
        let heard = |weather: &Weather| !weather.silent && self.number >= weather.silent_before;
        self.weather.wait_for(heard).await.ok();
    }

    async fn answers(mut self, from: &mut OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut chunk = [0; 16384];
        while let Ok(read @ 1..) = from.read(&mut chunk).await {
            self.keep().await;
            if to.write_all(&chunk[..read]).await.is_err() {
                return;
            }
        }
    }

    /// What is lost, if it ends at the word.
    async fn requests(mut self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) -> Option<Lost> {
        let (mut chunk, mut seen) = ([0; 16384], Vec::new());
        while let Ok(read @ 1..) = from.read(&mut chunk).await {
            self.keep().await;
            seen.extend_from_slice(&chunk[..read]);
            let lost = shared.hear(&mut seen);
            if lost != Some(Lost::Request) && to.write_all(&chunk[..read]).await.is_err() {
                return None;
            }
            if lost.is_some() {
                return lost;
            }
        }
        None
    }
}

impl Shared {
    /// What is lost at the end of what was seen. Leaves of it what may be the beginning of the word: it may come in two pieces.
    fn hear(&self, seen: &mut Vec<u8>) -> Option<Lost> {
        let mut loss = self.loss.lock().unwrap();
        let Some(loss) = loss.as_mut() else {
            seen.clear();
            return None;
        };
        if !seen.windows(loss.word.len()).any(|bytes| bytes == loss.word) {
            seen.drain(..seen.len().saturating_sub(loss.word.len() - 1));
            return None;
        }
        seen.clear();
        loss.left = loss.left.checked_sub(1)?;
        Some(loss.lost)
    }
}
