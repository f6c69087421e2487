//! What stands between a relay and its server, and can go wrong there: connections that are slow, or silent, or cut.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// What happens to bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

struct Shared {
    server: Mutex<SocketAddr>,
    weather: watch::Sender<Weather>,
    connections: Mutex<u64>,
}

pub struct Gate {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Gate {
    pub async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let weather = Weather {
            silent_before: 0,
            silent: false,
            delay: Duration::ZERO,
            cuts: 0,
        };
        let shared = Arc::new(Shared {
            server: Mutex::new(server),
            weather: watch::Sender::new(weather),
            connections: Mutex::default(),
        });
        let serving = tokio::spawn(accept(listener, shared.clone()));
        Self {
            address,
            shared,
            serving,
        }
    }

    /// From now on everything goes there.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.shared.server.lock().unwrap() = server;
    }

    /// Nothing passes any more, on no connection, and nobody is told.
    pub fn fall_silent(&self) {
        self.shared.weather.send_modify(|weather| weather.silent = true);
    }

    /// What is connected stays silent for ever; whoever connects anew is heard.
    pub fn hear_new_ones(&self) {
        let connections = *self.shared.connections.lock().unwrap();
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

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        connections.spawn(pass(client, shared.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(client: TcpStream, shared: Arc<Shared>) {
    let number = {
        let mut connections = shared.connections.lock().unwrap();
        *connections += 1;
        *connections - 1
    };
    let mut weather = shared.weather.subscribe();
    let cuts = weather.borrow().cuts;
    let at = *shared.server.lock().unwrap();
    let Ok(server) = TcpStream::connect(at).await else {
        return;
    };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = one_way(number, from_client, to_server, shared.weather.subscribe()) => {}
        () = one_way(number, from_server, to_client, shared.weather.subscribe()) => {}
        _ = weather.wait_for(|weather| weather.cuts > cuts) => {}
    }
}

async fn one_way(number: u64, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut weather: watch::Receiver<Weather>) {
    let mut chunk = [0; 16384];
    loop {
        let read = match from.read(&mut chunk).await {
            Ok(read) if read > 0 => read,
            _ => return,
        };
        let delay = weather.borrow().delay;
        tokio::time::sleep(delay).await;
        // For one that is silent for ever, until the test ends.
        let heard = |weather: &Weather| !weather.silent && number >= weather.silent_before;
        if weather.wait_for(heard).await.is_err() || to.write_all(&chunk[..read]).await.is_err() {
            return;
        }
    }
}
