//! The service behind the layer.

use ::http::{Request, Response, StatusCode, request::Parts};
use bytes::Bytes;
use http_body::Body as HttpBody;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use posthouse_core::{BoxError, Code, Error};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    sync::oneshot,
    task::JoinError,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tower_service::Service;
use tracing::Instrument as _;

use super::{
    Hold, Idempotency, renewals, request,
    response::{Body, RESULT_NOT_KEPT, Read, Refusal, Says, read, replay, says, unread},
};
use crate::ledger::{Begun, Conclusion, Kept};

/// How long it waits before it records an end again, which the store has not taken: at first, and at most.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// A service whose requests are done once. See [the module](super).
#[derive(Clone)]
pub struct Guarded<S, O> {
    inner: S,
    rules: Arc<Idempotency<O>>,
}

impl<S, O> Guarded<S, O> {
    pub(super) fn new(inner: S, rules: Idempotency<O>) -> Self {
        Self {
            inner,
            rules: Arc::new(rules),
        }
    }
}

impl<S, O, B, R> Service<Request<B>> for Guarded<S, O>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: HttpBody + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
    O: Clone + Send + Sync + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready goes, and another one stays.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let rules = self.rules.clone();
        Box::pin(async move {
            match rules.read(request).await {
                Ok(Asked::Plain(request)) => pass(inner, request).await,
                Ok(Asked::Once(once)) => on_a_task(inner, once, rules).await,
                Err(refusal) => Ok(refusal.into_response()),
            }
        })
    }
}

/// A request that was read.
enum Asked<B> {
    /// It has no key.
    Plain(Request<B>),
    /// It has one.
    Once(Once),
}

/// A request under a key.
struct Once {
    tenant: String,
    key: String,
    parts: Parts,
    body: Bytes,
}

/// What becomes of it.
enum Next<O> {
    /// It is done, for the first time.
    Do(Parts, Bytes, Hold<O>),
    /// It was done before.
    Told(Response<Body>),
}

impl<O: Clone + Send + Sync + 'static> Idempotency<O> {
    async fn read<B>(&self, request: Request<B>) -> Result<Asked<B>, Refusal>
    where
        B: HttpBody,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        if !self.methods.contains(&parts.method) {
            return Ok(Asked::Plain(Request::from_parts(parts, body)));
        }
        let Some(key) = request::key(&parts.headers)? else {
            if self.required {
                let detail = "this request needs an Idempotency-Key header";
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "key_missing", detail));
            }
            return Ok(Asked::Plain(Request::from_parts(parts, body)));
        };
        let Some(tenant) = (self.caller)(&parts) else {
            let detail = "an Idempotency-Key belongs to somebody, and nobody knows who asks";
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "caller_unknown", detail));
        };
        Ok(Asked::Once(Once {
            tenant: request::within(tenant),
            key,
            body: whole(body, self.most_asked).await?,
            parts,
        }))
    }

    async fn begin(&self, once: Once) -> Result<Next<O>, Refusal> {
        let Once {
            tenant,
            key,
            mut parts,
            body,
        } = once;
        let fingerprint = (self.fingerprint)(&parts, &body);
        let ledger = self.ledger.within(&(self.scope)(&parts), self.most_kept);
        let begun = ledger.begin(&tenant, &key, fingerprint).await;
        match begun.map_err(|error| refused(&error))? {
            Begun::Acquired(guard) => {
                let hold = Arc::new(guard);
                parts.extensions.insert(hold.clone());
                Ok(Next::Do(parts, body, hold))
            }
            Begun::Replay(kept) => replay(kept).map(Next::Told).ok_or_else(not_kept),
            Begun::Busy { retry_after } => {
                let detail = "the first request with this Idempotency-Key is under way";
                // Most are done long before their time is up.
                let wait = retry_after.min(LONGEST_WAIT);
                Err(Refusal::new(StatusCode::CONFLICT, Code::IdempotentBusy.as_str(), detail).after(wait))
            }
            Begun::Failed(kept) => failed(kept),
            Begun::Mismatch => {
                let detail = "this Idempotency-Key was used for another request";
                Err(Refusal::new(self.mismatch, Code::Conflict.as_str(), detail))
            }
        }
    }
}

fn not_kept() -> Refusal {
    let detail = "it was done, and its answer was not kept";
    Refusal::new(StatusCode::CONFLICT, RESULT_NOT_KEPT, detail)
}

/// It failed for good: with the answer that it had, or with the status that was recorded.
fn failed<O>(kept: Kept) -> Result<Next<O>, Refusal> {
    let status = kept.status.and_then(|status| StatusCode::from_u16(status).ok());
    let said = kept.error.is_some();
    replay(kept).map(Next::Told).ok_or_else(|| match said {
        true => {
            let detail = "it failed for good before";
            let status = status.unwrap_or(StatusCode::CONFLICT);
            Refusal::new(status, Code::IdempotentLastFailed.as_str(), detail)
        }
        false => not_kept(),
    })
}

fn refused(error: &Error) -> Refusal {
    tracing::warn!(%error, "a request could not be begun in the ledger");
    Refusal::of(error)
}

/// The whole body, at most so many bytes of it.
async fn whole<B>(body: B, most: usize) -> Result<Bytes, Refusal>
where
    B: HttpBody,
    B::Error: Into<BoxError>,
{
    let read = Limited::new(body, most).collect().await;
    read.map(|read| read.to_bytes()).map_err(|error| {
        if error.is::<LengthLimitError>() {
            let detail = format!("a request with an Idempotency-Key may have {most} bytes");
            return Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", detail);
        }
        let detail = "the request broke off; nothing was done";
        Refusal::new(StatusCode::BAD_REQUEST, "request_broken", detail)
    })
}

async fn pass<S, B, R>(mut inner: S, request: Request<B>) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    Ok(unread(inner.call(request).await?))
}

/// Begins, does it and records how it ended, on a task of its own: a client that is gone ends nothing halfway. The answer is told as soon as it is there; if the store does not take
/// the record of it then, that is tried for as long as the hold lasts.
async fn on_a_task<S, B, R, O>(inner: S, once: Once, rules: Arc<Idempotency<O>>) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: From<Bytes> + Send + 'static,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
    O: Clone + Send + Sync + 'static,
{
    let (tell, told) = oneshot::channel();
    let work = async move {
        // If nobody listens any more, the client is gone.
        match rules.begin(once).await {
            Ok(Next::Do(parts, body, hold)) => {
                work(inner, Request::from_parts(parts, B::from(body)), hold, &rules, tell).await
            }
            Ok(Next::Told(response)) => drop(tell.send(Ok(response))),
            Err(refusal) => drop(tell.send(Ok(refusal.into_response()))),
        }
    };
    let work = tokio::spawn(work.in_current_span());
    match told.await {
        Ok(answered) => answered,
        // It ended without a word.
        Err(_) => match work.await.map_err(JoinError::try_into_panic) {
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            _ => Ok(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "stopped", "the service stops").into_response()),
        },
    }
}

/// To whom the answer is told.
type Tell<E> = oneshot::Sender<Result<Response<Body>, E>>;

async fn work<S, B, R, O>(
    mut inner: S,
    request: Request<B>,
    hold: Hold<O>,
    rules: &Idempotency<O>,
    tell: Tell<S::Error>,
) where
    S: Service<Request<B>, Response = Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
    O: Clone + Send + Sync + 'static,
{
    let (lease, until) = (rules.ledger.lease_time(), Instant::now() + rules.at_most);
    let renewing = AbortOnDropHandle::new(tokio::spawn(renew(hold.clone(), lease, until)));
    let response = match inner.call(request).await {
        Ok(response) => response,
        Err(error) => {
            // What it did is not known, nor does it say.
            drop(renewing);
            record(&hold, None, rules.at_most, || drop(tell.send(Err(error)))).await;
            return;
        }
    };
    let status = response.status();
    let (end, response) = match says(status) {
        Says::Unknown => (None, unread(response)),
        // It did nothing; but what the one before it did is still not known.
        Says::Nothing if hold.taken_over() => (None, unread(response)),
        Says::Nothing => {
            let error = Some(format!("answered {}", status.as_u16()));
            (Some(Conclusion::Released { error }), unread(response))
        }
        Says::Ended => {
            let (found, response) = read(response, rules.most_kept, until).await;
            let kept = match found {
                Read::Whole(answer) => Some(answer.kept(hold.keeps())),
                Read::TooLarge(status) => Some(Kept::default().status(status.as_u16())),
                // Half of an answer is told to nobody else.
                Read::Broken => None,
            };
            let end = kept.map(|kept| match status.is_client_error() {
                true => Conclusion::Failed(kept),
                false => Conclusion::Succeeded(kept),
            });
            (end, response)
        }
    };
    // From here on nobody renews what may be given up.
    let _renewing = end.is_some().then_some(renewing);
    record(&hold, end, rules.at_most, || drop(tell.send(Ok(response)))).await;
}

/// Goes on for as long as the service works, and no longer than that. On a task of its own, because it may wait for the service's transaction.
async fn renew<O>(hold: Hold<O>, lease: Duration, until: Instant) {
    while Instant::now() < until {
        tokio::time::sleep(renewals(lease)).await;
        match hold.renew(lease).await {
            Ok(()) => {}
            // The service has ended it, or left it to a message; or it was too slow.
            Err(Error::HoldLost(_)) => return,
            Err(error) => tracing::warn!(%error, "the hold of a request could not be renewed"),
        }
    }
    tracing::warn!("a request takes longer than it may; when its lease is over another may do it");
}

/// Records an end, or that nobody knows it, and has the answer told: when it is recorded, or when the store has not answered the first time. A service that has recorded its own end has the last word.
async fn record<O>(hold: &Hold<O>, end: Option<Conclusion>, at_most: Duration, tell: impl FnOnce()) {
    let (began, mut tell, mut wait) = (Instant::now(), Some(tell), FIRST_WAIT);
    loop {
        let recording = async {
            match &end {
                Some(end) => hold.conclude(end).await,
                None => hold.abandon().await,
            }
        };
        // Given up, it may be written all the same: told again, it is.
        let recorded = timeout(LONGEST_WAIT, recording).await;
        let recorded = recorded.unwrap_or_else(|_| Err(Error::Timeout("the store does not answer".into())));
        // Told in any case, and only once.
        if let Some(tell) = tell.take() {
            tell();
        }
        match recorded {
            Ok(()) => return,
            Err(Error::HoldLost(_)) => return tracing::debug!("a request was ended by its service, or by its time"),
            Err(error) if error.retryable() && began.elapsed() < at_most => {
                tracing::warn!(%error, "the answer to a request is not kept yet; it is tried again");
                tokio::time::sleep(wait).await;
                wait = (2 * wait).min(LONGEST_WAIT);
            }
            Err(error) => {
                return tracing::error!(%error, "the answer to a request could not be kept; when its lease is over it may be done again");
            }
        }
    }
}
