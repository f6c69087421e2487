//! What is answered: what was kept, or why not.

use ::http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{
        CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, RETRY_AFTER, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING,
        UPGRADE, WWW_AUTHENTICATE,
    },
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
use tokio::time::{Instant, timeout_at};

use crate::ledger::{Answer, Kept};

/// The header that marks an answer which was kept.
pub const REPLAYED: &str = "idempotency-replayed";

/// The code of an answer that was too large to be kept.
pub const RESULT_NOT_KEPT: &str = "result_not_kept";

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Headers that belong to a connection, to a moment or to one client: they are not told again.
const FLEETING: [HeaderName; 10] = [
    CONNECTION,
    CONTENT_LENGTH,
    DATE,
    SET_COOKIE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    TE,
    TRAILER,
    WWW_AUTHENTICATE,
];
/// The most bytes of headers that are kept, names and values.
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
    let lasting = |name: &str| {
        !FLEETING
            .iter()
            .any(|fleeting| name.eq_ignore_ascii_case(fleeting.as_str()))
    };
    let mut response = response(Answer {
        status,
        headers: headers.into_iter().filter(|(name, _)| lasting(name)).collect(),
        body: body?,
        cut: false,
    });
    response
        .headers_mut()
        .insert(HeaderName::from_static(REPLAYED), HeaderValue::from_static("true"));
    Some(response)
}

/// What an answer says about the effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Says {
    /// This is how it ended: it is told again.
    Ended,
    /// Nothing was done: the key is free.
    Nothing,
    /// Nobody knows: the next one is told that it was taken over.
    Unknown,
}

pub(super) fn says(status: StatusCode) -> Says {
    match status.as_u16() {
        408 => Says::Unknown,
        _ if status.is_server_error() => Says::Unknown,
        // Refused at the door, or not now.
        401 | 403..=407 | 409 | 411 | 413..=415 | 421 | 425 | 429 | 431 => Says::Nothing,
        _ => Says::Ended,
    }
}

/// What is kept of the headers; nothing if they are too large. Of a header that is there several times the values stand behind each other.
pub(super) fn kept_headers(headers: &HeaderMap) -> Option<Headers> {
    let mut kept = Headers::new();
    let lasting = headers.iter().filter(|(name, _)| !FLEETING.contains(name));
    for (name, value) in lasting {
        let Ok(value) = value.to_str() else { continue };
        kept.entry(name.as_str().to_owned())
            .and_modify(|all| {
                all.push_str(", ");
                all.push_str(value);
            })
            .or_insert_with(|| value.to_owned());
    }
    let size: usize = kept.iter().map(|(name, value)| name.len() + value.len()).sum();
    (size <= MOST_HEADERS).then_some(kept)
}

/// What was read of an answer.
pub(super) enum Read {
    /// All of it.
    Whole(Answer),
    /// It has more than is kept: bytes, headers, trailers, or no end.
    TooLarge(StatusCode),
    /// It broke off.
    Broken,
}

/// Reads an answer of the service as far as it is kept, and until then. It is sent as it came in any case.
pub(super) async fn read<B>(response: Response<B>, most: usize, until: Instant) -> (Read, Response<Body>)
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let headers = kept_headers(response.headers()).filter(|_| !is_endless(response.headers()));
    let Some(headers) = headers else {
        return (Read::TooLarge(response.status()), unread(response));
    };
    let (parts, body) = response.into_parts();
    let (mut body, mut size) = (Box::pin(body), 0);
    let mut frames: VecDeque<Result<Frame<Bytes>, BoxError>> = VecDeque::new();
    let (found, body) = loop {
        let Ok(frame) = timeout_at(until, body.frame()).await else {
            break (Read::TooLarge(parts.status), Some(body));
        };
        let Some(frame) = frame else {
            let data = frames.iter().flatten().filter_map(Frame::data_ref);
            let answer = Answer {
                status: Some(parts.status.as_u16()),
                headers,
                body: data.flat_map(|bytes: &Bytes| bytes.iter().copied()).collect(),
                cut: false,
            };
            // What has ended is not asked again.
            break (Read::Whole(answer), None);
        };
        let frame = frame.map_err(Into::into);
        size += frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
        let (broken, trailers) = (frame.is_err(), frame.as_ref().is_ok_and(Frame::is_trailers));
        frames.push_back(frame);
        if broken {
            break (Read::Broken, None);
        } else if size > most || trailers {
            break (Read::TooLarge(parts.status), Some(body));
        }
    };
    let rest = Rest { frames, body };
    (found, Response::from_parts(parts, rest.boxed_unsync()))
}

/// A stream of events is told as it comes.
fn is_endless(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
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
    /// Until it has ended.
    body: Option<Pin<Box<B>>>,
}

impl<B> HttpBody for Rest<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(frame) = self.frames.pop_front() {
            return Poll::Ready(Some(frame));
        }
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(body.as_mut().poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.body.as_ref().is_none_or(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.frames.iter().flatten().filter_map(Frame::data_ref);
        let read = read.map(|bytes| bytes.len() as u64).sum::<u64>();
        let rest = self
            .body
            .as_ref()
            .map_or(SizeHint::with_exact(0), |body| body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + read);
        // Of what breaks off nobody knows how long it was to be.
        let whole = self.frames.iter().all(Result::is_ok);
        if let Some(upper) = rest.upper().filter(|_| whole) {
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
        headers.append("vary", HeaderValue::from_static("accept"));
        headers.append("vary", HeaderValue::from_static("origin"));
        headers.insert("x-odd", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        let kept = kept_headers(&headers).unwrap();
        let names: Vec<_> = kept.keys().map(String::as_str).collect();
        assert_eq!(names, ["content-type", "location", "vary"]);
        assert_eq!(kept["vary"], "accept, origin");
        headers.insert("x-long", HeaderValue::try_from("x".repeat(MOST_HEADERS)).unwrap());
        assert_eq!(kept_headers(&headers), None);
        let cookie = Headers::from([("Set-Cookie".to_owned(), "session=secret".to_owned())]);
        let kept = Kept {
            headers: cookie,
            body: Some(Vec::new()),
            ..Kept::default()
        };
        let told = replay(kept).unwrap();
        assert_eq!(
            told.headers().keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            [REPLAYED]
        );
    }

    #[test]
    fn what_may_be_tried_again_is_not_kept() {
        let table = [
            (Says::Ended, [200, 201, 204, 302, 400, 402, 410, 422].as_slice()),
            (Says::Nothing, &[401, 403, 404, 405, 409, 413, 415, 425, 429]),
            (Says::Unknown, &[408, 500, 502, 503, 504]),
        ];
        for (expected, statuses) in table {
            for status in statuses {
                assert_eq!(says(StatusCode::from_u16(*status).unwrap()), expected, "{status}");
            }
        }
    }

    /// Must not be asked again when it has ended.
    struct Once(VecDeque<Frame<Bytes>>, bool);

    impl HttpBody for Once {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            assert!(!self.1, "it had ended");
            let frame = self.0.pop_front();
            self.1 = frame.is_none();
            Poll::Ready(frame.map(Ok))
        }
    }

    #[tokio::test]
    async fn what_has_ended_is_not_asked_again() {
        let trailers = || Frame::trailers(HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("x"))]));
        let data = || Frame::data(Bytes::from_static(b"abc"));
        let (found, response) = read(Response::new(Once([data(), data()].into(), false)), 100, soon()).await;
        assert!(matches!(found, Read::Whole(answer) if answer.body == b"abcabc"));
        let mut body = response.into_body();
        while body.frame().await.is_some() {}
        assert!(body.frame().await.is_none());
        let (found, response) = read(Response::new(Once([data(), trailers()].into(), false)), 100, soon()).await;
        assert!(matches!(found, Read::TooLarge(_)), "trailers are not kept");
        assert!(response.into_body().collect().await.unwrap().trailers().is_some());
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Has no end, and says no more.
    struct Quiet(bool);

    impl HttpBody for Quiet {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            match std::mem::replace(&mut self.0, true) {
                true => Poll::Pending,
                false => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"abc"))))),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_no_end_is_told_as_it_comes() {
        let (found, response) = read(Response::new(Quiet(false)), 100, soon()).await;
        assert!(matches!(found, Read::TooLarge(_)));
        let first = response.into_body().frame().await.unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), "abc");
    }

    /// A body of these pieces, and perhaps it breaks off.
    fn body(pieces: &[&'static str], breaks: bool) -> Rest<Full<Bytes>> {
        let frames = pieces
            .iter()
            .map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))));
        Rest {
            frames: frames.chain(breaks.then(|| Err("broke off".into()))).collect(),
            body: Some(Box::pin(Full::new(Bytes::new()))),
        }
    }

    #[tokio::test]
    async fn every_answer_passes_and_what_fits_is_kept() {
        for most in [0, 3, 5, 6, 100] {
            let (read, response) = read(Response::new(body(&["abc", "def"], false)), most, soon()).await;
            assert_eq!(response.body().size_hint().exact(), Some(6));
            let sent = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(sent, "abcdef");
            match read {
                Read::Whole(answer) => assert_eq!((answer.body.as_slice(), most >= 6), (&b"abcdef"[..], true)),
                Read::TooLarge(status) => assert_eq!((status, most < 6), (StatusCode::OK, true)),
                Read::Broken => panic!("it did not break off"),
            }
        }
        let (read, response) = read(Response::new(body(&["abc"], true)), 100, soon()).await;
        assert!(matches!(read, Read::Broken));
        assert_eq!(
            response.body().size_hint().exact(),
            None,
            "nobody knows how long it was to be"
        );
        assert!(response.into_body().collect().await.is_err());
    }
}
