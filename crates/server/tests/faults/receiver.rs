//! A receiver of webhooks that remembers everything and does as it is told.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// What it does with a request.
#[derive(Clone, Debug)]
pub enum Then {
    /// Answers with this status.
    Status(u16),
    /// Answers with this status and these header lines.
    With(u16, String),
    /// Answers 200, when the gate is opened.
    Wait,
    /// Answers 200 after a while.
    After(Duration),
    /// Never answers.
    Hang,
    /// Answers 200, and a body that never ends.
    Endless,
    /// Resets the connection.
    Reset,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// What was done with it.
    pub then: String,
}

impl Request {
    pub fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    pub fn epoch(&self) -> u64 {
        self.headers["posthouse-epoch"].parse().unwrap()
    }

    pub fn topic(&self) -> &str {
        &self.headers["posthouse-topic"]
    }

    /// Empty for a message of nobody's.
    pub fn tenant(&self) -> &str {
        self.headers.get("posthouse-tenant").map_or("", String::as_str)
    }
}

type Script = dyn Fn(&Request) -> Then + Send + Sync;

struct Shared {
    requests: Mutex<Vec<Request>>,
    script: Mutex<Arc<Script>>,
    gate: watch::Sender<bool>,
    /// Of each tenant, requests that are not answered yet: now, and at most.
    open: Mutex<HashMap<String, (usize, usize)>>,
}

pub struct Receiver {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Receiver {
    /// One that answers 200.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            requests: Mutex::default(),
            script: Mutex::new(Arc::new(|_: &Request| Then::Status(200))),
            gate: watch::Sender::new(false),
            open: Mutex::default(),
        });
        let serving = tokio::spawn(accept(listener, shared.clone()));
        Self {
            address,
            shared,
            serving,
        }
    }

    /// From now on it does this.
    pub fn does(&self, script: impl Fn(&Request) -> Then + Send + Sync + 'static) {
        *self.shared.script.lock().unwrap() = Arc::new(script);
    }

    /// Lets everybody go on who waits.
    pub fn open(&self) {
        self.shared.gate.send_replace(true);
    }

    /// The most requests of this tenant that were here at once, each until it was answered.
    pub fn most_at_once(&self, tenant: &str) -> usize {
        let open = self.shared.open.lock().unwrap();
        open.get(tenant).map_or(0, |(_, most)| *most)
    }

    /// Everything that came, in its order.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }
}

impl Shared {
    fn begin(&self, tenant: &str) {
        let mut open = self.open.lock().unwrap();
        let (now, most) = open.entry(tenant.to_owned()).or_default();
        *now += 1;
        *most = (*most).max(*now);
    }

    fn end(&self, tenant: &str) {
        self.open.lock().unwrap().get_mut(tenant).unwrap().0 -= 1;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(serve(stream, shared.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    while let Some(mut request) = read(&mut stream).await {
        let script = shared.script.lock().unwrap().clone();
        let then = script(&request);
        request.then = format!("{then:?}");
        let tenant = request.tenant().to_owned();
        shared.begin(&tenant);
        shared.requests.lock().unwrap().push(request);
        let (status, more) = match then {
            Then::Status(status) => (status, String::new()),
            Then::With(status, more) => (status, more),
            Then::Wait => {
                let mut gate = shared.gate.subscribe();
                gate.wait_for(|open| *open).await.unwrap();
                (200, String::new())
            }
            Then::After(wait) => {
                tokio::time::sleep(wait).await;
                (200, String::new())
            }
            Then::Hang => return std::future::pending().await,
            Then::Endless => {
                let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                let _ = stream.write_all(head.as_bytes()).await;
                while stream.write_all(b"4\r\nmore\r\n").await.is_ok() {}
                return;
            }
            // Closed with no time to linger is a reset.
            Then::Reset => return stream.set_zero_linger().unwrap(),
        };
        // Before the answer: the next request may come of it.
        shared.end(&tenant);
        let answer = format!("HTTP/1.1 {status} Said\r\n{more}content-length: 0\r\n\r\n");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads one request; nothing when the connection ends.
async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let (line, raw) = head.split_once("\r\n").unwrap();
    let named = raw.lines().filter_map(|line| line.split_once(": "));
    let headers: HashMap<String, String> = named
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request {
        path: line.split(' ').nth(1).unwrap().to_owned(),
        headers,
        body,
        then: String::new(),
    })
}
