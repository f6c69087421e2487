//! A connection that can be cut: between a client and a server on this machine, at a word that the client says.
//!
//! To find out what a program makes of an answer that it never got, the answer must be lost at one exact place. The proxy passes bytes
//! on until the word comes by; then it either keeps it (the server never hears it) or passes it on and keeps the answer (the server
//! has done it, and the client does not know). Both ends see their connection end.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

/// The most connections at a time; more wait.
const CONNECTIONS: usize = 64;
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
    cuts: Arc<Cuts>,
    _running: JoinSet<()>,
}

struct Cuts {
    word: Vec<u8>,
    lost: Lost,
    /// How many are still to be made.
    left: AtomicUsize,
    made: AtomicUsize,
}

impl Proxy {
    /// Stands before the server at this address, and cuts the first `cuts` connections on which the client says `word`.
    pub async fn start(server: SocketAddr, word: &str, lost: Lost, cuts: usize) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let cuts = Arc::new(Cuts {
            word: word.as_bytes().to_vec(),
            lost,
            left: AtomicUsize::new(cuts),
            made: AtomicUsize::new(0),
        });
        let mut running = JoinSet::new();
        running.spawn(accept(listener, server, cuts.clone()));
        Ok(Self {
            address,
            cuts,
            _running: running,
        })
    }

    /// How many connections it has cut.
    pub fn made(&self) -> usize {
        self.cuts.made.load(Ordering::SeqCst)
    }
}

/// Dropped, it ends all connections.
async fn accept(listener: TcpListener, server: SocketAddr, cuts: Arc<Cuts>) {
    let mut connections = JoinSet::new();
    // Ends: when the proxy is dropped, or nobody can connect any more.
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(pass(client, server, cuts.clone()));
        while connections.try_join_next().is_some() {}
        while connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
    }
}

/// Passes bytes on in both directions until one end closes, or the word comes by.
async fn pass(client: TcpStream, server: SocketAddr, cuts: Arc<Cuts>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let ((from_client, mut to_client), (mut from_server, mut to_server)) = (client.into_split(), server.into_split());
    let cut = tokio::select! {
        cut = until_word(from_client, &mut to_server, &cuts) => cut,
        _ = tokio::io::copy(&mut from_server, &mut to_client) => return,
    };
    if cut && cuts.lost == Lost::Answer {
        // The server has heard the word; its answer says that it has done it.
        let mut answer = [0; 1024];
        let _ = tokio::time::timeout(PATIENCE, from_server.read(&mut answer)).await;
    }
    if cut {
        cuts.made.fetch_add(1, Ordering::SeqCst);
    }
}

/// Whether it ended at the word.
async fn until_word(mut from: OwnedReadHalf, to: &mut OwnedWriteHalf, cuts: &Cuts) -> bool {
    let (mut chunk, mut seen) = ([0; 8192], Vec::new());
    loop {
        let read = match from.read(&mut chunk).await {
            Ok(read) if read > 0 => read,
            _ => return false,
        };
        seen.extend_from_slice(&chunk[..read]);
        let said = seen.windows(cuts.word.len()).any(|bytes| bytes == cuts.word);
        let cut = said && cuts.take();
        if !(cut && cuts.lost == Lost::Request) && to.write_all(&chunk[..read]).await.is_err() {
            return false;
        }
        if cut {
            return true;
        }
        // The word may be in two pieces.
        seen.drain(
            ..if said {
                seen.len()
            } else {
                seen.len().saturating_sub(cuts.word.len() - 1)
            },
        );
    }
}

impl Cuts {
    fn take(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }
}
