//! Hosts, networks and URLs: what a route may send to, and which hosts a topic may name.

use std::{fmt, net::IpAddr};
use toml::de::DeTable;
use url::{Host, Url};

use super::read::{Reader, Section};

/// What may be sent to although it is private.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// A host, in small letters; `*.` in front stands for every name below it.
    Host(String),
    /// A network: its address, and how many of its bits count.
    Network(IpAddr, u8),
}

/// As it is written.
impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => f.write_str(host),
            Self::Network(address, bits) => write!(f, "{address}/{bits}"),
        }
    }
}

/// `[explicit]`: topics that name their destination themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explicit {
    /// Hosts that `http:URL` may name, in small letters; `*.` in front stands for every name below it.
    pub http: Vec<String>,
    /// Of these, what may be sent to although it is private.
    pub allow: Vec<Allowed>,
}

impl Explicit {
    /// Reads `[explicit]`.
    pub fn read(reader: &mut Reader<'_>, root: &DeTable<'_>) -> Self {
        let section = Section::open(reader, "explicit", "explicit".to_owned(), root.get("explicit"));
        let mut http = Vec::new();
        for text in section.texts(reader, "http") {
            match host(&text) {
                Some(host) => http.push(host),
                None => {
                    section.refuse(
                        reader,
                        "http",
                        format!("{text:?} is no host: write shop.example or *.shop.example"),
                    );
                }
            }
        }
        let allow = read_allowed(reader, &section);
        Self { http, allow }
    }
}

impl Explicit {
    /// Whether a topic may name this host.
    pub fn allows(&self, host: &str) -> bool {
        self.http.iter().any(|pattern| host_is(pattern, host))
    }
}

/// Reads `allow` of a section.
pub fn read_allowed(reader: &mut Reader<'_>, section: &Section<'_>) -> Vec<Allowed> {
    let mut allowed = Vec::new();
    for text in section.texts(reader, "allow") {
        match network(&text).or_else(|| host(&text).map(Allowed::Host)) {
            Some(one) => allowed.push(one),
            None => {
                let message =
                    format!("{text:?} is neither a host nor a network: write shop.internal, *.internal or 10.1.0.0/16");
                section.refuse(reader, "allow", message);
            }
        }
    }
    allowed
}

/// An address, or a network whose bits beyond its length are zero.
fn network(text: &str) -> Option<Allowed> {
    let (address, bits) = text
        .split_once('/')
        .map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let most: u8 = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits
        .map_or(Some(most), |bits| bits.parse().ok())
        .filter(|bits| *bits <= most)?;
    (address == masked(address, bits)).then_some(Allowed::Network(address, bits))
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(four) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(four) & mask).into())
        }
        IpAddr::V6(six) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::V6((u128::from(six) & mask).into())
        }
    }
}

/// A host name in small letters, perhaps with `*.` in front.
fn host(text: &str) -> Option<String> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let labels = name.split('.').all(|label| {
        let inner = label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        inner && !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && !label.ends_with('-')
    });
    (labels && name.len() <= 253).then(|| text.to_ascii_lowercase())
}

/// Refuses what is no URL of a webhook, without repeating it.
pub fn check_url(text: &str) -> Result<Url, String> {
    const WRITE: &str = "write https://HOST/PATH";
    let url = Url::parse(text).map_err(|e| format!("is no URL ({e}); {WRITE}"))?;
    let problem = match url.scheme() {
        "http" | "https" if url.cannot_be_a_base() || url.host().is_none() => "names no host",
        "http" | "https"
            if !text
                .get(url.scheme().len()..)
                .is_some_and(|rest| rest.starts_with("://")) =>
        {
            "lacks its //"
        }
        "http" | "https" if !url.username().is_empty() || url.password().is_some() => {
            "holds a user name or password; put credentials into headers = { authorization = { env = \"NAME\" } }"
        }
        "http" | "https" if url.fragment().is_some() => "has a fragment (#), which is never sent",
        "http" | "https" if text.len() > 2048 => "has more than 2048 bytes",
        "http" | "https" => return Ok(url),
        _ => "is of no kind that is known",
    };
    Err(format!("{problem}; {WRITE}"))
}

/// A URL as whoever may read the configuration sees it: without its parameters.
pub fn without_parameters(url: &Url) -> String {
    let mut plain = url.clone();
    plain.set_query(None);
    plain.into()
}

/// Whether a URL may be sent to as far as it can be told without looking its host up: the guard in the transport asks again.
pub fn may_be_sent_to(url: &Url, allow: &[Allowed]) -> bool {
    let named = |name: &str| {
        allow
            .iter()
            .any(|one| matches!(one, Allowed::Host(host) if host_is(host, name)))
    };
    let inside = |address: IpAddr| {
        allow
            .iter()
            .any(|one| matches!(one, Allowed::Network(net, bits) if net.is_ipv4() == address.is_ipv4() && masked(address, *bits) == *net))
    };
    match url.host() {
        Some(Host::Domain(name)) => !(name == "localhost" || name.ends_with(".localhost")) || named(name),
        Some(Host::Ipv4(address)) => !is_private(address.into()) || inside(address.into()),
        Some(Host::Ipv6(address)) => !is_private(address.into()) || inside(address.into()),
        None => false,
    }
}

fn host_is(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(below) => name.ends_with(below),
        None => pattern == name,
    }
}

fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(four) => four.is_loopback() || four.is_private() || four.is_link_local() || four.is_unspecified(),
        IpAddr::V6(six) => {
            six.is_loopback() || six.is_unique_local() || six.is_unicast_link_local() || six.is_unspecified()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_hosts_are_told_apart() {
        assert_eq!(network("10.1.0.0/16"), Some(Allowed::Network([10, 1, 0, 0].into(), 16)));
        assert_eq!(network("10.1.2.3"), Some(Allowed::Network([10, 1, 2, 3].into(), 32)));
        assert!(network("0.0.0.0/0").is_some() && network("fd00::/8").is_some() && network("::/0").is_some());
        for bad in ["10.1.2.3/16", "10.1.0.0/33", "10.1.0.0/x", "10.1/16", "fd00::1/8"] {
            assert_eq!(network(bad), None, "{bad}");
        }
        assert_eq!(host("*.Shop.Example").as_deref(), Some("*.shop.example"));
        for bad in ["", "*", "*.", "a..b", "-a", "a b", "https://a", "a:80", "a.*"] {
            assert_eq!(host(bad), None, "{bad}");
        }
    }

    #[test]
    fn urls_are_refused_without_being_repeated() {
        for bad in [
            "https://u:s3cret@h/",
            "s3cret",
            "ftp://s3cret/",
            "https:s3cret",
            "https://h/#s3cret",
            "https://",
            "mailto:s3cret@h",
        ] {
            let problem = check_url(bad).unwrap_err();
            assert!(!problem.contains("s3cret"), "{problem}");
        }
        assert_eq!(
            without_parameters(&check_url("https://h/a?token=s3cret").unwrap()),
            "https://h/a"
        );
    }

    #[test]
    fn private_places_need_a_word() {
        let may = |url: &str, allow: &[Allowed]| may_be_sent_to(&Url::parse(url).unwrap(), allow);
        for url in [
            "http://127.0.0.1/",
            "http://localhost/",
            "http://[::1]/",
            "http://10.1.2.3/",
            "http://[fd00::1]/",
            "http://[::ffff:10.1.2.3]/",
        ] {
            assert!(!may(url, &[]), "{url}");
        }
        assert!(may("https://shop.example/", &[]) && may("https://8.8.8.8/", &[]));
        assert!(may("http://10.1.2.3/", &[network("10.1.0.0/16").unwrap()]));
        assert!(!may("http://10.2.2.3/", &[network("10.1.0.0/16").unwrap()]));
        assert!(may("http://localhost/", &[Allowed::Host("localhost".into())]));
        assert!(may("http://a.localhost/", &[Allowed::Host("*.localhost".into())]));
    }
}
