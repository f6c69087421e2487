//! The service behind the layer.

use ::http::{Request, Response, StatusCode};
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
use tokio_util::task::AbortOnDropHandle;
use tower_service::Service;

use super::{
    Hold, Idempotency, renewals, request,
    response::{Body, RESULT_NOT_KEPT, Read, Refusal, is_passing, read, replay, unread},
};
use crate::ledger::{Begun, Conclusion, Keep, Kept};

/// How often an end is to be recorded while the store does not answer, and how long it waits at first; twice as long each time.
const RECORDS: u32 = 5;
const BETWEEN_RECORDS: Duration = Duration::from_millis(100);

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
            match rules.begin(request).await {
                Ok(Next::Pass(request)) => pass(inner, request).await,
                Ok(Next::Do(request, hold)) => once(inner, request, hold, &rules).await,
                Ok(Next::Told(response)) => Ok(response),
                Err(refusal) => Ok(refusal.into_response()),
            }
        })
    }
}

/// What becomes of a request.
enum Next<B, O> {
    /// It has no key.
    Pass(Request<B>),
    /// It is done, for the first time.
    Do(Request<B>, Hold<O>),
    /// It was done before.
    Told(Response<Body>),
}

impl<O: Clone + Send + Sync + 'static> Idempotency<O> {
    async fn begin<B>(&self, request: Request<B>) -> Result<Next<B, O>, Refusal>
    where
        B: HttpBody + From<Bytes>,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        if !self.methods.contains(&parts.method) {
            return Ok(Next::Pass(Request::from_parts(parts, body)));
        }
        let Some(key) = request::key(&parts.headers)? else {
            if self.required {
                let detail = "this request needs an Idempotency-Key header";
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "key_missing", detail));
            }
            return Ok(Next::Pass(Request::from_parts(parts, body)));
        };
        let Some(tenant) = (self.caller)(&parts) else {
            let detail = "an Idempotency-Key belongs to somebody, and nobody knows who asks";
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "caller_unknown", detail));
        };
        let body = whole(body, self.most_asked).await?;
        let fingerprint = request::fingerprint(&parts, &body);
        let ledger = self.ledger.within(&(self.scope)(&parts), self.most_kept);
        let begun = ledger.begin(&request::within(tenant), &key, fingerprint).await;
        match begun.map_err(|error| refused(&error))? {
            Begun::Acquired(guard) => {
                let hold = Arc::new(guard);
                parts.extensions.insert(hold.clone());
                Ok(Next::Do(Request::from_parts(parts, B::from(body)), hold))
            }
            Begun::Replay(kept) => replay(kept).map(Next::Told).ok_or_else(|| {
                let detail = "it was done, and its answer was too large to be kept";
                Refusal::new(StatusCode::CONFLICT, RESULT_NOT_KEPT, detail)
            }),
            Begun::Busy { retry_after } => {
                let detail = "the first request with this Idempotency-Key is under way";
                Err(Refusal::new(StatusCode::CONFLICT, Code::IdempotentBusy.as_str(), detail).after(retry_after))
            }
            Begun::Failed(kept) => failed(kept),
            Begun::Mismatch => {
                let detail = "this Idempotency-Key was used for another request";
                Err(Refusal::new(self.mismatch, Code::Conflict.as_str(), detail))
            }
        }
    }
}

/// It failed for good: with the answer that it had, or with the status that was recorded.
fn failed<B, O>(kept: Kept) -> Result<Next<B, O>, Refusal> {
    let status = kept.status.and_then(|status| StatusCode::from_u16(status).ok());
    replay(kept).map(Next::Told).ok_or_else(|| {
        let detail = "it failed for good before";
        let status = status.unwrap_or(StatusCode::CONFLICT);
        Refusal::new(status, Code::IdempotentLastFailed.as_str(), detail)
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

/// Does it, and records how it ended. On a task of its own: a client that is gone does not end it halfway.
async fn once<S, B, R, O>(
    mut inner: S,
    request: Request<B>,
    hold: Hold<O>,
    rules: &Idempotency<O>,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
    O: Clone + Send + Sync + 'static,
{
    let (most, lease) = (rules.most_kept, rules.ledger.lease_time());
    let work = tokio::spawn(async move {
        let _renewing = AbortOnDropHandle::new(tokio::spawn(renew(hold.clone(), lease)));
        let response = inner.call(request).await?;
        if is_passing(response.status()) {
            let error = Some(format!("answered {}", response.status().as_u16()));
            record(&hold, Conclusion::Released { error }).await;
            return Ok(unread(response));
        }
        let refuses = response.status().is_client_error();
        let (found, response) = read(response, most).await;
        let kept = match found {
            Read::Whole(answer) => answer.kept(Keep::Result { most }),
            Read::TooLarge(status) => Kept::default().status(status.as_u16()),
            // Whoever asks again is told nothing of what was only half said: when its time is up, another goes on.
            Read::Broken => return Ok(response),
        };
        let end = if refuses {
            Conclusion::Failed(kept)
        } else {
            Conclusion::Succeeded(kept)
        };
        record(&hold, end).await;
        Ok(response)
    });
    match work.await {
        Ok(answered) => answered,
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
}

/// Goes on for as long as the service works. On a task of its own, because it may wait for the service's transaction.
async fn renew<O>(hold: Hold<O>, lease: Duration) {
    loop {
        tokio::time::sleep(renewals(lease)).await;
        match hold.renew(lease).await {
            Ok(()) => {}
            // The service has ended it, or left it to a message; or it was too slow.
            Err(Error::HoldLost(_)) => return,
            Err(error) => tracing::warn!(%error, "the hold of a request could not be renewed"),
        }
    }
}

/// Records an end; a service that has recorded its own has the last word.
async fn record<O>(hold: &Hold<O>, end: Conclusion) {
    for time in 0..RECORDS {
        match hold.conclude(&end).await {
            Ok(()) => return,
            Err(Error::HoldLost(_)) => return tracing::debug!("a request was ended by its service, or by its time"),
            Err(error) if error.retryable() && time + 1 < RECORDS => {
                tokio::time::sleep(BETWEEN_RECORDS * 2u32.pow(time)).await;
            }
            Err(error) => {
                return tracing::error!(%error, "the answer to a request could not be kept; when its lease is over it may be done again");
            }
        }
    }
}
