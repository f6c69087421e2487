//! Takes out of answers and errors what they must not show: a receiver may well say "cannot POST /the/secret/path".

use percent_encoding::percent_decode_str;
use reqwest::{Url, header::HeaderMap};
use zeroize::Zeroizing;

use crate::webhook::Secret;

/// A part of a path, a value of a query or a word of a header this long may be a token.
const TOKEN: usize = 12;

/// The texts that are never shown, longest first.
pub(super) struct Hidden(Vec<Zeroizing<String>>);

impl Hidden {
    pub fn new(url: &Url, headers: &HeaderMap, secrets: &[Secret]) -> Self {
        let query = url.query().unwrap_or_default();
        let whole = [url.path().to_owned(), query.to_owned()];
        let parts = url.path().split('/').chain(query.split(['&', '=']));
        let words = headers
            .values()
            .filter_map(|value| value.to_str().ok())
            .flat_map(str::split_whitespace);
        let parts = parts.chain(words).filter(|part| part.len() >= TOKEN).map(str::to_owned);
        let raw: Vec<String> = whole.into_iter().filter(|text| text.len() > 1).chain(parts).collect();
        let decoded = raw
            .iter()
            .map(|text| percent_decode_str(text).decode_utf8_lossy().into_owned());
        let mut hidden: Vec<_> = decoded.chain(raw.iter().cloned()).map(Zeroizing::new).collect();
        hidden.extend(secrets.iter().map(Secret::written));
        hidden.sort_by_key(|text| std::cmp::Reverse(text.len()));
        hidden.dedup();
        Self(hidden)
    }

    pub fn in_text(&self, text: &str) -> String {
        let hide = |text: String, hidden: &Zeroizing<String>| text.replace(hidden.as_str(), "[hidden]");
        self.0.iter().fold(text.to_owned(), hide)
    }
}
