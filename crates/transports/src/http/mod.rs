//! Webhooks: a message as a signed POST to a URL.
//!
//! ```no_run
//! use posthouse_transports::http::{Http, Secret};
//!
//! # fn example() -> Result<(), posthouse_core::Invalid> {
//! let audit = Http::to("https://audit.example/events")?;
//! let billing = Http::builder("https://billing.example/usage")
//!     .secret(Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")?)
//!     .header("authorization", "Bearer 1234")
//!     .build()?;
//! # Ok(()) }
//! ```
//!
//! One send is one request. Redirects are not followed, proxies of the environment are not asked, nothing is tried again here; the
//! one exception cannot be seen by anybody: a kept connection that turns out to be closed before a byte of the request was written
//! is replaced by a new one. A connection is kept for [`IDLE`], which is less than servers do, so that a request seldom meets one
//! that is being closed; when it does, it is `Unknown`, and the relay's to repeat.
//!
//! | to read about | open |
//! |---|---|
//! | what an answer means | [`answer`] |
//! | which addresses may be dialled | [`guard`] |
//! | signatures | [`webhook`](crate::webhook) |

pub mod answer;
mod failure;
pub mod guard;
mod hide;
mod request;
mod resolver;
mod tls;

pub use crate::webhook::Secret;
pub use request::{ENCODED, IDEMPOTENCY_KEY};
pub use resolver::LookingUp;

use async_trait::async_trait;
use posthouse_core::{Delivery, Invalid, Outcome, Transport, digest::tag, ledger::Answer, saga::MOST_OUTPUT};
use reqwest::{
    Client, Response, Url,
    header::{CONTENT_ENCODING, CONTENT_TYPE, DATE, HeaderMap, RETRY_AFTER},
    redirect, retry,
};
use std::{
    fmt, io,
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use answer::{Failure, Rejects, answered, answered_by_participant, failed, retry_after};
use guard::Policy;
use hide::Hidden;
use resolver::{Guarded, Lookup, check};

/// How long a connection is kept for the next message: less than the 5 seconds that a common server does.
pub const IDLE: Duration = Duration::from_secs(4);
/// How much of an answer is read. Then the connection is dropped.
pub const MOST_READ: usize = 16 * 1024;
/// How long a send may take in all, unless told otherwise: less than a relay waits.
pub const TIMEOUT: Duration = Duration::from_secs(8);

/// How long an answer's body is waited for: the status has said it all, and a message must not wait for small talk.
const BODY: Duration = Duration::from_secs(1);
/// Connections that are kept for a destination.
const KEPT: usize = 16;
const LONGEST_URL: usize = 2048;

/// A URL that messages are posted to. See [`Http::builder`].
pub struct Http {
    url: Url,
    name: String,
    /// One for each destination: connections that were made under one policy are never used under another.
    client: Client,
    policy: Policy,
    secrets: Vec<Secret>,
    headers: HeaderMap,
    timeout: Duration,
    rejects: Rejects,
    hidden: Hidden,
}

impl Http {
    /// Posts to this URL, unsigned, as every destination does unless told otherwise.
    pub fn to(url: &str) -> Result<Self, Invalid> {
        Self::builder(url).build()
    }

    /// A destination that is being put together.
    pub fn builder(url: &str) -> Builder {
        Builder {
            url: url.to_owned(),
            policy: Policy::public(),
            allow: Vec::new(),
            secrets: [None, None],
            headers: Vec::new(),
            timeout: TIMEOUT,
            rejects: None,
            authorities: Vec::new(),
            lookup: resolver::system(),
        }
    }

    /// Scheme, host and a hash of the whole: for logs, and as the name of the destination. Never the path or the query, which may
    /// be secrets.
    pub fn name(&self) -> &str {
        &self.name
    }

    async fn post(&self, delivery: &Delivery) -> Result<Response, Outcome> {
        // A literal address never meets the resolver.
        if let Some(address) = literal(&self.url) {
            check(address, &self.policy).map_err(|blocked| self.failed(Failure::Blocked, &blocked.to_string()))?;
        }
        let headers = request::headers(delivery, &self.headers, &self.secrets, SystemTime::now());
        let request = self.client.post(self.url.clone()).timeout(self.time_for(delivery));
        let sent = request.headers(headers).body(delivery.payload.clone()).send().await;
        sent.map_err(|error| self.failed(failure::kind(&error), &failure::text(error)))
    }

    /// How long a send may take in all. A step of a saga says itself.
    fn time_for(&self, delivery: &Delivery) -> Duration {
        let own = delivery.ticket.as_ref().and_then(|ticket| ticket.timeout());
        own.unwrap_or(self.timeout)
    }

    fn failed(&self, failure: Failure, error: &str) -> Outcome {
        failed(failure, self.hidden.in_text(error))
    }
}

#[async_trait]
impl Transport for Http {
    async fn send(&self, delivery: &Delivery) -> Outcome {
        let response = match self.post(delivery).await {
            Ok(response) => response,
            Err(outcome) => return outcome,
        };
        let status = response.status().as_u16();
        let header = |name| response.headers().get(name).map(|value| value.as_bytes());
        let after = header(RETRY_AFTER).and_then(|wish| retry_after(wish, header(DATE), SystemTime::now()));
        let content_type = header(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value).into_owned());
        // What a step of a saga answers is its output: it is waited for, and it is kept as it is.
        let step = delivery.ticket.is_some();
        let (most, wait) = match step {
            true => (MOST_OUTPUT, self.time_for(delivery)),
            false => (MOST_READ, BODY),
        };
        let (body, whole) = body(response, most, wait).await;
        let text = String::from_utf8_lossy(&body);
        let said = self.hidden.in_text(&text);
        let outcome = answered(status, after, &said, &self.rejects);
        let outcome = match step {
            true => answered_by_participant(status, outcome),
            false => outcome,
        };
        let Outcome::Delivered { receipt, .. } = outcome else {
            return outcome;
        };
        let answer = Answer {
            status: Some(status),
            headers: content_type
                .map(|value| (CONTENT_TYPE.to_string(), value))
                .into_iter()
                .collect(),
            // Byte by byte, unless there was something to hide.
            body: if step || said == text { body } else { said.into_bytes() },
            cut: !whole,
        };
        Outcome::Delivered {
            receipt,
            answer: Some(Box::new(answer)),
        }
    }
}

/// The beginning of an answer's body, and whether it is all of it. An answer that is cut or slow here was an answer all the same.
async fn body(mut response: Response, most: usize, wait: Duration) -> (Vec<u8>, bool) {
    let encoded = response.headers().contains_key(CONTENT_ENCODING);
    let mut read = Vec::new();
    let reading = async {
        // Ends: each turn reads something, or is the last.
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if read.len() + chunk.len() > most => {
                    read.extend_from_slice(&chunk[..most - read.len()]);
                    return false;
                }
                Ok(Some(chunk)) => read.extend_from_slice(&chunk),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    };
    // Cut off or not, what was read by then is all there is.
    let whole = tokio::time::timeout(wait, reading).await.unwrap_or(false);
    if encoded {
        // We asked for no encoding, and unpack none: it may be a bomb.
        return (Vec::new(), false);
    }
    (read, whole)
}

/// Only what may be seen.
impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A destination that is being put together. What is wrong with it is said by [`build`](Builder::build).
pub struct Builder {
    url: String,
    policy: Policy,
    allow: Vec<String>,
    secrets: [Option<Secret>; 2],
    headers: Vec<(String, String)>,
    timeout: Duration,
    rejects: Option<Vec<u16>>,
    authorities: Vec<Vec<u8>>,
    lookup: Lookup,
}

impl Builder {
    /// Signs every request.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secrets[0] = Some(secret);
        self
    }

    /// Signs with this one as well, while receivers go over from one to the other.
    pub fn second_secret(mut self, secret: Secret) -> Self {
        self.secrets[1] = Some(secret);
        self
    }

    /// Whether the destination may be on loopback or a private network. Metadata services stay closed.
    pub fn allow_private(mut self, allow: bool) -> Self {
        self.policy = self.policy.allow_private(allow);
        self
    }

    /// Hosts (by name) and networks (`10.1.0.0/16`) that may be reached although they are not public.
    pub fn allow<S: Into<String>>(mut self, hosts_and_networks: impl IntoIterator<Item = S>) -> Self {
        self.allow.extend(hosts_and_networks.into_iter().map(Into::into));
        self
    }

    /// A header for every request, such as `authorization`. It is never shown, and no message can replace it.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// How long a send may take in all. Shorter than the relay's own timeout for the destination, or that one comes first and
    /// knows less. Half of it is for making a connection.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The statuses that reject a message for good, in place of 400, 410 and 422.
    pub fn rejects(mut self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.rejects = Some(statuses.into_iter().collect());
        self
    }

    /// A certificate authority (PEM) to be trusted besides those of the system.
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(pem.into());
        self
    }

    /// Who looks names up, in place of the system. Whatever it answers is judged like any other answer.
    pub fn resolver<F, A>(mut self, lookup: F) -> Self
    where
        F: Fn(String) -> A + Send + Sync + 'static,
        A: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        self.lookup = Arc::new(move |name| Box::pin(lookup(name)));
        self
    }

    /// Checks it all. The error names what to change, and shows nothing of the URL but scheme and host.
    pub fn build(self) -> Result<Http, Invalid> {
        let url = parse(&self.url)?;
        let name = name(&url);
        let policy = self
            .allow
            .iter()
            .try_fold(self.policy, |policy, text| policy.allow(text))?;
        let policy = policy.of_host(url.host_str().unwrap_or_default());
        let refused = |problem: String| Invalid::new("url", format!("{name}: {problem}"));
        if let Some(address) = literal(&url) {
            check(address, &policy).map_err(|blocked| refused(blocked.to_string()))?;
        } else if guard::is_local_name(url.host_str().unwrap_or_default()) && !policy.is_private() {
            return Err(refused(
                "is this machine; set allow_private = true if it is meant".into(),
            ));
        }
        if self.timeout < Duration::from_millis(1) || self.timeout > Duration::from_secs(3600) {
            return Err(Invalid::new("timeout", "must be between 1 ms and 1 hour"));
        }
        let headers: HeaderMap = self
            .headers
            .iter()
            .map(|(name, value)| request::own(name, value))
            .collect::<Result<_, _>>()?;
        let secrets: Vec<Secret> = self.secrets.into_iter().flatten().collect();
        let hidden = Hidden::new(&url, &headers, &secrets);
        let guarded = Guarded {
            lookup: self.lookup,
            policy: policy.clone(),
        };
        let tls = tls::config(url.scheme() == "https", &self.authorities)?;
        let client = client(guarded, tls, self.timeout).map_err(|e| refused(e.without_url().to_string()))?;
        Ok(Http {
            rejects: self.rejects.map_or(Ok(Rejects::default()), Rejects::only)?,
            timeout: self.timeout,
            url,
            name,
            client,
            policy,
            secrets,
            headers,
            hidden,
        })
    }
}

/// Everything that a client might do by itself is off, also where another crate of the program has switched its feature on.
fn client(guarded: Guarded, tls: rustls::ClientConfig, timeout: Duration) -> reqwest::Result<Client> {
    Client::builder()
        .tls_backend_preconfigured(tls)
        .dns_resolver(Arc::new(guarded))
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .no_proxy()
        .referer(false)
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
        .connect_timeout(timeout / 2)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(KEPT)
        .user_agent(concat!("posthouse/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Reads a URL more strictly than browsers do: what they silently repair is refused, since two readers may repair it differently.
fn parse(text: &str) -> Result<Url, Invalid> {
    let refused = |problem: &str| Err(Invalid::new("url", problem));
    if text.len() > LONGEST_URL {
        return refused("is longer than 2048 bytes");
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return refused("holds a space, a control character or a backslash; write them percent-encoded");
    }
    let Ok(url) = Url::parse(text) else {
        return refused("is not a URL such as https://billing.example/usage");
    };
    if !matches!(url.scheme(), "http" | "https") {
        return refused("must begin with https:// or http://");
    }
    // Also "https:host" and "https:///host", which a lenient reader takes for the same.
    let rest = text.get(url.scheme().len()..).and_then(|rest| rest.strip_prefix("://"));
    if rest.is_none_or(|rest| rest.starts_with('/')) {
        return refused("must have two slashes after its scheme, and then a host");
    }
    if !url.username().is_empty() || url.password().is_some() || authority(text).contains('@') {
        return refused("must not hold a user name or a password; give credentials as a header (authorization)");
    }
    let host = url.host_str().unwrap_or_default();
    if host.strip_suffix('.').unwrap_or(host).split('.').any(str::is_empty) {
        return refused("has a host with nothing between its dots");
    }
    if url.fragment().is_some() {
        return refused("must not hold a fragment (#), which is never sent");
    }
    if url.port() == Some(0) {
        return refused("must not have port 0");
    }
    Ok(url)
}

/// Between the slashes: host and port, and whatever pretends to be.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// The address, where the host is one: the URL's reader has made it of every spelling that there is.
fn literal(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// What a URL is called where people can see it: scheme, host, and a hash that tells it from others. Everything else may be a secret.
pub fn name(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let host = url.host_str().unwrap_or_default();
    format!("{}://{host}{port}#{}", url.scheme(), tag(url.as_str()))
}
