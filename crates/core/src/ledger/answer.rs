//! What an entry keeps of its end.

use serde::Serialize;

use crate::{Digest, Headers, Invalid, text};

/// What the effect answered, as a service would tell it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Answer {
    /// The status of the answer, where it is one of HTTP.
    pub status: Option<u16>,
    /// Its headers.
    pub headers: Headers,
    /// Its body.
    pub body: Vec<u8>,
    /// The body is not all of it: nothing of it is kept.
    pub cut: bool,
}

/// How much of an answer is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// All of it, unless its body has more bytes than this: then its digest.
    Result {
        /// The most bytes.
        most: usize,
    },
    /// The digest of its body.
    Digest,
}

/// What was kept of an end. Of an answer that was too large, or is not to be kept, the body is missing, and its digest is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Kept {
    /// The status of the answer.
    pub status: Option<u16>,
    /// Its headers.
    pub headers: Headers,
    /// Its body, byte by byte.
    pub body: Option<Vec<u8>>,
    /// The digest of the body.
    pub digest: Option<Digest>,
    /// What was said about a failure, cleaned and cut.
    pub error: Option<String>,
}

impl Default for Keep {
    fn default() -> Self {
        Self::Result { most: 4096 }
    }
}

impl Answer {
    /// A body without a status.
    pub fn bytes(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            ..Self::default()
        }
    }

    /// A JSON document, and a header that says so.
    pub fn json<T: Serialize + ?Sized>(body: &T) -> Result<Self, Invalid> {
        let body =
            serde_json::to_vec(body).map_err(|e| Invalid::new("answer", format!("cannot be written as JSON: {e}")))?;
        let headers = [("content-type".to_owned(), "application/json".to_owned())];
        Ok(Self {
            headers: headers.into(),
            ..Self::bytes(body)
        })
    }

    /// With this status.
    pub fn status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// What is kept of it.
    pub fn kept(self, keep: Keep) -> Kept {
        let digest = (!self.cut).then(|| Digest::of_fields(&[&self.body]));
        let fits = !self.cut && matches!(keep, Keep::Result { most } if self.body.len() <= most);
        let headers = if fits { self.headers } else { Headers::new() };
        Kept {
            status: self.status,
            headers,
            body: fits.then_some(self.body),
            digest,
            error: None,
        }
    }
}

impl Kept {
    /// What is kept of a failure.
    pub fn failure(error: impl AsRef<str>) -> Self {
        Self {
            error: Some(text::error_text(error.as_ref())),
            ..Self::default()
        }
    }

    /// With this status.
    pub fn status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// As every store can keep it: nothing in it may make recording an end fail. Control characters of headers become spaces, errors are cut, and what is no
    /// status is none.
    pub fn clean(mut self) -> Self {
        let line = |text: String| text::excerpt(&text, usize::MAX);
        self.headers = self
            .headers
            .into_iter()
            .map(|(name, value)| (line(name), line(value)))
            .collect();
        self.error = self.error.map(|error| text::error_text(&error));
        self.status = self.status.filter(|status| (100..1000).contains(status));
        self
    }
}
