//! What the process shows of itself: where it answers, and what it logs.

use std::net::{Ipv4Addr, SocketAddr};
use toml::de::DeTable;

use super::read::{Reader, Section};

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Where it answers; nowhere when absent.
    pub bind: Option<SocketAddr>,
    /// Whether something in front of it authenticates and encrypts.
    pub trusted_proxy: bool,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Lines for programs.
    pub json: bool,
    /// What is worth a line: `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
}

impl Admin {
    /// Reads `[admin]`. There are no tokens and no TLS, so nobody but this machine, or a proxy that has both, may ask.
    pub fn read(reader: &mut Reader<'_>, root: &DeTable<'_>) -> Self {
        let section = Section::open(reader, "admin", "admin".to_owned(), root.get("admin"));
        let text = section.text(reader, "bind").unwrap_or_default();
        let trusted_proxy = section.switch(reader, "trusted_proxy").unwrap_or_default();
        let bind = match text.as_str() {
            "off" => None,
            text => match address(text) {
                Some(address) => Some(address),
                None => {
                    section.refuse(
                        reader,
                        "bind",
                        "is no address with a port: write 127.0.0.1:7878, [::1]:7878 or \"off\"",
                    );
                    None
                }
            },
        };
        if bind.is_some_and(|address| !address.ip().to_canonical().is_loopback()) && !trusted_proxy {
            let help =
                "write 127.0.0.1, or, where a proxy in front of it authenticates and encrypts, trusted_proxy = true";
            section
                .refuse(
                    reader,
                    "bind",
                    "is open to others, and this version has neither tokens nor TLS",
                )
                .help = Some(help.to_owned());
        }
        Self { bind, trusted_proxy }
    }
}

fn address(text: &str) -> Option<SocketAddr> {
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    let local = local.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    local.or_else(|| text.parse().ok())
}

impl Log {
    /// Reads `[log]`.
    pub fn read(reader: &mut Reader<'_>, root: &DeTable<'_>) -> Self {
        let section = Section::open(reader, "log", "log".to_owned(), root.get("log"));
        Self {
            json: section.text(reader, "format").is_some_and(|format| format == "json"),
            level: section.text(reader, "level").unwrap_or_default(),
        }
    }
}
