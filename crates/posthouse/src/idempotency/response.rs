//! What is answered: what was kept, or why not.

use ::http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, RETRY_AFTER, SET_COOKIE, TRANSFER_ENCODING, UPGRADE},
    response::Parts,
};
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use posthouse_core::{BoxError, Error, Headers};
use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use crate::ledger::{Answer, Kept};

/// The header that marks an answer which was kept.
pub const REPLAYED: &str = "idempotency-replayed";

/// The code of an answer that was too large to be kept.
pub const RESULT_NOT_KEPT: &str = "result_not_kept";

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Headers that belong to a connection, to a moment or to one client: they are not told again.
const FLEETING: [HeaderName; 7] = [
    CONNECTION,
    CONTENT_LENGTH,
    DATE,
    SET_COOKIE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
];
/// The most bytes of headers that are kept, names and values. Beyond it only the content type is.
const MOST_HEADERS: usize = 16 * 1024;

/// Why a request is not done.
#[derive(Debug)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    detail: String,
    retry_after: Option<Duration>,
}

impl Refusal {
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            retry_after: None,
        }
    }

    pub fn after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// The store does not answer, or refuses. What it said stays here.
    pub fn of(error: &Error) -> Self {
        if error.retryable() {
            let detail = "what was asked for before cannot be looked up; nothing was done";
            return Self::new(StatusCode::SERVICE_UNAVAILABLE, error.code().as_str(), detail)
                .after(Duration::from_secs(1));
        }
        let status = match error {
            Error::Invalid(_) => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.code().as_str(), "nothing was done")
    }

    pub fn into_response(self) -> Response<Body> {
        let problem = serde_json::json!({
            "title": self.status.canonical_reason().unwrap_or("refused"),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        let mut response = Response::new(whole(problem.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds(wait)));
        }
        response
    }
}

/// Whole seconds, never too early.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// An answer as it is sent, for a service that has recorded it itself (`finish_in`).
pub fn response(answer: Answer) -> Response<Body> {
    let status = answer.status.and_then(|status| StatusCode::from_u16(status).ok());
    let mut response = Response::new(whole(answer.body));
    *response.status_mut() = status.unwrap_or(StatusCode::OK);
    for (name, value) in &answer.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// What was kept, as it was; without a body there is nothing to tell.
pub(super) fn replay(kept: Kept) -> Option<Response<Body>> {
    let Kept {
        status, headers, body, ..
    } = kept;
    let mut response = response(Answer {
        status,
        headers,
        body: body?,
    });
    response
        .headers_mut()
        .insert(HeaderName::from_static(REPLAYED), HeaderValue::from_static("true"));
    Some(response)
}

/// Whether an answer says that nothing was done, or that it may be tried again.
pub(super) fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 408 | 409 | 425 | 429)
}

/// What is kept of the headers.
pub(super) fn kept_headers(headers: &HeaderMap) -> Headers {
    let readable = |(name, value): (&HeaderName, &HeaderValue)| {
        let kept = !FLEETING.contains(name);
        kept.then_some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
    };
    let all: Headers = headers.iter().filter_map(readable).collect();
    let size: usize = all.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size <= MOST_HEADERS {
        return all;
    }
    all.into_iter()
        .filter(|(name, _)| name == CONTENT_TYPE.as_str())
        .collect()
}

/// What was read of an answer.
pub(super) enum Read {
    /// All of it.
    Whole(Answer),
    /// It has more bytes than are kept.
    TooLarge(StatusCode),
    /// It broke off.
    Broken,
}

/// Reads an answer of the service as far as it is kept. It is sent as it came in any case.
pub(super) async fn read<B>(response: Response<B>, most: usize) -> (Read, Response<Body>)
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    let mut body = Box::pin(body);
    let (mut frames, mut size) = (VecDeque::new(), 0);
    let found = loop {
        let frame = match body.frame().await {
            None => break Read::Whole(answer(&parts, &frames)),
            Some(frame) => frame.map_err(Into::into),
        };
        size += frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
        let broken = frame.is_err();
        frames.push_back(frame);
        if broken {
            break Read::Broken;
        } else if size > most {
            break Read::TooLarge(parts.status);
        }
    };
    let rest = Rest { frames, body };
    (found, Response::from_parts(parts, rest.boxed_unsync()))
}

fn answer(parts: &Parts, frames: &VecDeque<Result<Frame<Bytes>, BoxError>>) -> Answer {
    let data = frames.iter().flatten().filter_map(Frame::data_ref);
    Answer {
        status: Some(parts.status.as_u16()),
        headers: kept_headers(&parts.headers),
        body: data.flat_map(|bytes| bytes.iter().copied()).collect(),
    }
}

/// An answer that is not looked at.
pub(super) fn unread<B>(response: Response<B>) -> Response<Body>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    response.map(|body| body.map_err(Into::into).boxed_unsync())
}

/// What was read, and what was not.
struct Rest<B> {
    frames: VecDeque<Result<Frame<Bytes>, BoxError>>,
    body: Pin<Box<B>>,
}

impl<B> HttpBody for Rest<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None => {
                let frame = ready!(self.body.as_mut().poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.frames.iter().flatten().filter_map(Frame::data_ref);
        let read = read.map(|bytes| bytes.len() as u64).sum::<u64>();
        let (rest, mut hint) = (self.body.size_hint(), SizeHint::new());
        hint.set_lower(rest.lower() + read);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + read);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_never_too_early() {
        let table = [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2)];
        for (millis, expected) in table {
            assert_eq!(seconds(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn what_belongs_to_a_moment_is_not_told_again() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", "text/plain"),
            ("set-cookie", "session=secret"),
            ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("location", "/orders/7"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.insert("x-odd", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        let kept: Vec<_> = kept_headers(&headers).into_keys().collect();
        assert_eq!(kept, ["content-type", "location"]);
        headers.insert("x-long", HeaderValue::try_from("x".repeat(MOST_HEADERS)).unwrap());
        assert_eq!(kept_headers(&headers).into_keys().collect::<Vec<_>>(), ["content-type"]);
    }

    #[test]
    fn what_may_be_tried_again_is_not_kept() {
        let passing = |status: u16| is_passing(StatusCode::from_u16(status).unwrap());
        assert!([408, 409, 425, 429, 500, 503].into_iter().all(passing));
        assert!(![200, 201, 204, 302, 400, 404, 410, 422].into_iter().any(passing));
    }

    /// A body of these pieces, and perhaps it breaks off.
    fn body(pieces: &[&'static str], breaks: bool) -> Rest<Full<Bytes>> {
        let frames = pieces
            .iter()
            .map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))));
        Rest {
            frames: frames.chain(breaks.then(|| Err("broke off".into()))).collect(),
            body: Box::pin(Full::new(Bytes::new())),
        }
    }

    #[tokio::test]
    async fn every_answer_passes_and_what_fits_is_kept() {
        for most in [0, 3, 5, 6, 100] {
            let (read, response) = read(Response::new(body(&["abc", "def"], false)), most).await;
            assert_eq!(response.body().size_hint().exact(), Some(6));
            let sent = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(sent, "abcdef");
            match read {
                Read::Whole(answer) => assert_eq!((answer.body.as_slice(), most >= 6), (&b"abcdef"[..], true)),
                Read::TooLarge(status) => assert_eq!((status, most < 6), (StatusCode::OK, true)),
                Read::Broken => panic!("it did not break off"),
            }
        }
        let (read, response) = read(Response::new(body(&["abc"], true)), 100).await;
        assert!(matches!(read, Read::Broken));
        assert!(response.into_body().collect().await.is_err());
    }
}
