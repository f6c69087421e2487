//! A receiver that does as it is told: it reads a request, remembers it, and writes what its script says.

use posthouse_core::{Delivery, Headers, Kind, MessageId};
use posthouse_transports::http::{Builder, Http};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// What it does with the next request.
#[derive(Clone)]
pub enum Then {
    /// Writes this and waits for the next request.
    Answer(Vec<u8>),
    /// Writes this and closes.
    Close(Vec<u8>),
    /// Writes this and resets the connection.
    Reset(Vec<u8>),
    /// Writes this and then nothing, for ever.
    Hang(Vec<u8>),
    /// Writes this, and then this again and again.
    Endless(Vec<u8>, Vec<u8>),
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub line: String,
    pub headers: HashMap<String, String>,
    /// Every header line, as it came.
    pub raw: String,
    pub body: Vec<u8>,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    requests: Vec<Request>,
}

pub struct Receiver {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    serving: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Receiver {
    /// One that does this with every request.
    pub async fn always(then: Then) -> Self {
        Self::script([then]).await
    }

    /// One that does these, the last again and again.
    pub async fn script(script: impl IntoIterator<Item = Then>) -> Self {
        let script: Vec<Then> = script.into_iter().collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Seen::default())));
        let shared = seen.clone();
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                shared.lock().unwrap().connections += 1;
                connections.spawn(serve(stream, script.clone(), shared.clone()));
            }
        });
        Self { address, seen, serving }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// A destination here, for which loopback is allowed.
    pub fn builder(&self) -> Builder {
        Http::builder(&self.url()).allow_private(true)
    }

    pub fn http(&self) -> Http {
        self.builder().build().unwrap()
    }

    pub fn requests(&self) -> Vec<Request> {
        self.seen.lock().unwrap().requests.clone()
    }

    pub fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }

    /// The one request there was.
    pub fn request(&self) -> Request {
        let requests = self.requests();
        assert_eq!(requests.len(), 1);
        requests[0].clone()
    }
}

async fn serve(mut stream: TcpStream, script: Vec<Then>, seen: Arc<Mutex<Seen>>) {
    while let Some(request) = read(&mut stream).await {
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.requests.push(request);
            seen.requests.len()
        };
        let then = script[number.min(script.len()) - 1].clone();
        match then {
            Then::Answer(bytes) => drop(stream.write_all(&bytes).await),
            Then::Close(bytes) => return drop(stream.write_all(&bytes).await),
            Then::Reset(bytes) => {
                drop(stream.write_all(&bytes).await);
                // Closed with no time to linger is a reset.
                return stream.set_zero_linger().unwrap();
            }
            Then::Hang(bytes) => {
                drop(stream.write_all(&bytes).await);
                return std::future::pending().await;
            }
            Then::Endless(bytes, more) => {
                drop(stream.write_all(&bytes).await);
                while stream.write_all(&more).await.is_ok() {}
                return;
            }
        }
    }
}

/// Reads one request; nothing when the connection ends.
pub async fn read(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let (line, raw) = head.split_once("\r\n").unwrap();
    let headers: HashMap<String, String> = raw
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.get("content-length").map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request {
        line: line.to_owned(),
        raw: raw.to_owned(),
        headers,
        body,
    })
}

/// An answer with this status, these header lines and this body.
pub fn answer(status: u16, headers: &[&str], body: &str) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} Whatever\r\ncontent-length: {}\r\n", body.len());
    for header in headers {
        text += &format!("{header}\r\n");
    }
    format!("{text}\r\n{body}").into_bytes()
}

/// The usual good answer.
pub fn ok() -> Then {
    Then::Answer(answer(200, &[], "taken"))
}

/// Something to send.
pub fn delivery() -> Delivery {
    Delivery {
        id: MessageId(uuid::Uuid::now_v7()),
        epoch: 7,
        generation: 2,
        attempt: 3,
        tenant: "acme".into(),
        namespace: "shop".into(),
        topic: "order.placed".into(),
        order_key: None,
        content_type: "application/json".into(),
        payload: br#"{"order":42}"#.to_vec(),
        headers: Headers::new(),
        kind: Kind::Message,
        parent: None,
        destination: None,
        ticket: None,
    }
}

/// So short that a test need not wait long for it, and long enough for a loaded machine to get a request out.
pub const SHORT: Duration = Duration::from_millis(1500);
