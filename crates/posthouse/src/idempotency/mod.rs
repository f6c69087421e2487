//! Requests that are done once: a layer for axum, and for every other service of tower, that honours `Idempotency-Key`.
//!
//! ```no_run
//! use axum::{Router, routing::post};
//! use posthouse::{
//!     AnyStore,
//!     idempotency::{Idempotency, by_authorization},
//!     ledger::Ledger,
//!     sqlite::AsyncOutbox,
//! };
//!
//! # async fn place() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = AnyStore::open("sqlite://shop.db").await?.store();
//! let layer = Idempotency::new(Ledger::new(store, AsyncOutbox::default(), "http"), by_authorization("a secret")).required();
//! let app: Router = Router::new().route("/orders", post(place)).route_layer(layer);
//! # Ok(()) }
//! ```
//!
//! | a request with a key | is answered |
//! |---|---|
//! | for the first time | by the service, and its answer is kept |
//! | again | with the same status, headers and body, and `idempotency-replayed: true` |
//! | again, while the first is under way | 409 and `Retry-After`; with [`Ledger::wait`], in time, with the same answer |
//! | for something else: another body, or query | 422, or [`mismatch_status`](Idempotency::mismatch_status) |
//! | whose answer was not kept: more than [`keep`](Idempotency::keep) bytes, a stream of events, trailers | 409, `result_not_kept` |
//! | that is empty, too long, or there twice; or is missing and [`required`](Idempotency::required) | 400 |
//! | of somebody whom nobody knows | 401 |
//! | while the store cannot be reached | 503; nothing was done |
//!
//! What is refused at the door (401, 403 to 407, 409, 411, 413 to 415, 421, 425, 429, 431) is not kept: the key is free at once. Nor is what nobody knows the effect of (408, 5xx, an error
//! of the service): the request may be sent again at once, and whoever does it then is told that it was taken over. All refusals are `application/problem+json`.
//!
//! The service goes on when its client is gone, and its hold is renewed meanwhile ([`at_most`](Idempotency::at_most)). Its answer is read as a whole before it is sent, as far as it is kept. It finds its [`Guard`] among the request's extensions. With
//! `finish_in` it records the answer in the transaction of what it does, and then the effect is there exactly once, also if the program dies in between. Without that it is there at
//! least once: a program that dies after the effect, and before the answer was kept, leaves the key to the next request when its lease is over.

mod request;
mod response;
mod service;

pub(crate) use request::within;
pub use request::{KEY, by_authorization};
pub use response::{Body, REPLAYED, RESULT_NOT_KEPT, response};
pub use service::Guarded;

use ::http::{Method, StatusCode, request::Parts};
use std::{sync::Arc, time::Duration};

use crate::ledger::{Fingerprint, Guard, Ledger};

/// Whose keys they are: the tenant of a request; none if nobody knows who asks.
type Caller = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;
/// What a key of a request is for.
type Scope = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

/// What a request asks for.
type Print = Arc<dyn Fn(&Parts, &[u8]) -> Fingerprint + Send + Sync>;

/// The layer. See [the module](self).
#[derive(Clone)]
pub struct Idempotency<O> {
    ledger: Ledger<O>,
    caller: Caller,
    scope: Scope,
    fingerprint: Print,
    at_most: Duration,
    required: bool,
    methods: Vec<Method>,
    mismatch: StatusCode,
    most_asked: usize,
    most_kept: usize,
}

/// The hold of a request that is done for the first time, among its extensions.
pub type Hold<O> = Arc<Guard<O>>;

impl<O: Clone> Idempotency<O> {
    /// A layer on this ledger; its lease, its retention and its patience are those of the keys, and its scope stands before the route's. `caller` says whose
    /// key it is, so that nobody is ever told the answer of another: [`by_authorization`], or what your own authentication has found out.
    pub fn new(ledger: Ledger<O>, caller: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self {
            ledger,
            caller: Arc::new(caller),
            scope: Arc::new(request::route),
            fingerprint: Arc::new(request::fingerprint),
            at_most: Duration::from_secs(15 * 60),
            required: false,
            methods: vec![Method::POST, Method::PATCH],
            mismatch: StatusCode::UNPROCESSABLE_ENTITY,
            most_asked: 1024 * 1024,
            most_kept: 1024 * 1024,
        }
    }

    /// Refuses requests without a key.
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// The methods whose requests may have a key; POST and PATCH unless they are said. Others pass.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// What a key is for, instead of its method and path: a request of another scope has nothing to do with it.
    pub fn scope(mut self, scope: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.scope = Arc::new(scope);
        self
    }

    /// What a request asks for, instead of its method, path, query and body: where one that is sent again is written in another way, as forms of several parts are.
    pub fn fingerprint(mut self, print: impl Fn(&Parts, &[u8]) -> Fingerprint + Send + Sync + 'static) -> Self {
        self.fingerprint = Arc::new(print);
        self
    }

    /// For how long a hold is renewed while its service works; a quarter of an hour unless it is said. Then its lease runs out, and another may do it.
    pub fn at_most(mut self, longest: Duration) -> Self {
        self.at_most = longest;
        self
    }

    /// What a key is answered with that was used for something else, instead of 422.
    pub fn mismatch_status(mut self, status: StatusCode) -> Self {
        self.mismatch = status;
        self
    }

    /// The most bytes of a request, which is read before anything is done; a MiB unless it is said. More is refused with 413.
    pub fn most_asked(mut self, bytes: usize) -> Self {
        self.most_asked = bytes;
        self
    }

    /// The most bytes of an answer that are kept; a MiB unless it is said.
    pub fn keep(mut self, bytes: usize) -> Self {
        self.most_kept = bytes;
        self
    }
}

impl<S, O: Clone> tower_layer::Layer<S> for Idempotency<O> {
    type Service = Guarded<S, O>;

    fn layer(&self, inner: S) -> Self::Service {
        Guarded::new(inner, self.clone())
    }
}

/// How often a hold is renewed while its service works.
fn renewals(lease: Duration) -> Duration {
    (lease / 3).max(Duration::from_millis(1))
}
