//! What went wrong when there was no answer: how far the request came, read from the client's errors.

use std::{error::Error, io};

use super::{
    answer::Failure,
    resolver::{Blocked, Unresolved},
};

/// The kind of a client's error. Where it is not certain that nothing was sent, something may have been.
pub(super) fn kind(error: &reqwest::Error) -> Failure {
    if any::<Blocked>(error) {
        Failure::Blocked
    } else if any::<Unresolved>(error) {
        Failure::Dns
    } else if error.is_connect() && any::<rustls::Error>(error) {
        Failure::Tls
    } else if error.is_connect() {
        Failure::Connect
    } else if error.is_timeout() {
        Failure::Timeout
    } else if causes(error).any(|e| e.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse)) {
        Failure::Protocol
    } else {
        Failure::Reset
    }
}

/// What it says, without the URL.
pub(super) fn text(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut said = error.to_string();
    for cause in causes(&error) {
        let cause = cause.to_string();
        // Many an error repeats its cause.
        if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}

fn any<E: Error + 'static>(error: &reqwest::Error) -> bool {
    causes(error).any(|e| e.is::<E>())
}

/// The causes, outermost first.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |e| cause(*e))
}

/// What an I/O error wraps is not what it says its cause is, but that one's cause.
fn cause<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}
