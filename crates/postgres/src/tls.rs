//! Whether and how connections are encrypted: `sslmode` and `sslrootcert` in the URL, with libpq's meaning of them (the table is at
//! [`Postgres::connect`](crate::Postgres::connect)). The driver knows three of the modes only, so these two parameters are read here
//! and taken out of the URL.

use percent_encoding::percent_decode_str;
use posthouse_core::{Error, Invalid};
use std::path::PathBuf;
use tokio_postgres::{Config, config::SslMode};

/// What makes a connection of the driver's an encrypted one.
#[cfg(feature = "tls")]
pub(crate) type Connector = tokio_postgres_rustls::MakeRustlsConnect;
/// Built without TLS, there is nothing that could.
#[cfg(not(feature = "tls"))]
pub(crate) type Connector = tokio_postgres::NoTls;

/// What a certificate must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trust {
    /// There, whoever made it: safe from listeners, not from impostors.
    Any,
    /// Made by an authority that we trust.
    Authority,
    /// The same, and for the host that we asked for.
    Host,
}

/// Reads the URL: the driver's configuration, and what encrypts its connections.
pub(crate) fn read(url: &str) -> Result<(Config, Connector), Error> {
    let (plain, wanted) = take_out(url)?;
    let mut config: Config = plain.parse().map_err(|e: tokio_postgres::Error| {
        let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        refused(format!("is not a usable PostgreSQL URL: {why}"))
    })?;
    let given = wanted.mode.as_deref();
    let (mode, trust) = match given {
        None => (config.get_ssl_mode(), Trust::Any),
        Some("disable") => (SslMode::Disable, Trust::Any),
        Some("prefer") => (SslMode::Prefer, Trust::Any),
        Some("require") => (SslMode::Require, Trust::Any),
        Some("verify-ca") => (SslMode::Require, Trust::Authority),
        Some("verify-full") => (SslMode::Require, Trust::Host),
        Some(_) => {
            return Err(refused(
                "sslmode: must be disable, prefer, require, verify-ca or verify-full",
            ));
        }
    };
    let trust = match (mode, trust) {
        // Whoever names an authority wants it to be asked.
        (SslMode::Require, Trust::Any) if wanted.roots.is_some() => Trust::Authority,
        (_, trust) => trust,
    };
    config.ssl_mode(mode);
    let connector = connector(mode, trust, wanted.roots)?;
    Ok((config, connector))
}

/// What the URL says about TLS.
#[derive(Default)]
struct Wanted {
    mode: Option<String>,
    roots: Option<PathBuf>,
}

fn take_out(url: &str) -> Result<(String, Wanted), Error> {
    let mut wanted = Wanted::default();
    let Some((base, query)) = url.split_once('?').filter(|(base, _)| base.contains("://")) else {
        return Ok((url.to_owned(), wanted));
    };
    let mut others = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decoded = || {
            let text = percent_decode_str(value).decode_utf8();
            text.map_err(|_| refused(format!("{name}: is not text")))
        };
        match name {
            "sslmode" => wanted.mode = Some(decoded()?.into_owned()),
            "sslrootcert" => wanted.roots = Some(decoded()?.into_owned().into()),
            _ => others.push(pair),
        }
    }
    let mark = if others.is_empty() { "" } else { "?" };
    Ok((format!("{base}{mark}{}", others.join("&")), wanted))
}

#[cfg(feature = "tls")]
fn connector(mode: SslMode, trust: Trust, roots: Option<PathBuf>) -> Result<Connector, Error> {
    // Nobody will be asked, so there is nothing to read.
    let roots = roots.filter(|_| mode == SslMode::Require);
    crate::rustls::connector(trust, roots.as_deref()).map_err(refused)
}

#[cfg(not(feature = "tls"))]
fn connector(mode: SslMode, _trust: Trust, _roots: Option<PathBuf>) -> Result<Connector, Error> {
    match mode {
        SslMode::Disable | SslMode::Prefer => Ok(tokio_postgres::NoTls),
        _ => Err(refused(
            "sslmode: this program was built without the feature \"tls\"; build it with it, or write sslmode=disable",
        )),
    }
}

fn refused(problem: impl Into<String>) -> Error {
    Invalid::new("store", problem).into()
}
