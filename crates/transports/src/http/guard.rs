//! Which addresses may be dialled: the rules, without a socket.
//!
//! Whoever can choose a destination's URL, or answer for its name in the DNS, must not be able to aim a relay at what only the
//! relay can reach: itself, its neighbours, the cloud's metadata service. So what is not an ordinary public address is refused,
//! unless the destination's policy says otherwise; metadata services are refused whatever it says.

use posthouse_core::Invalid;
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// What a destination may reach beyond public addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    private: bool,
    allowed: Vec<Allowed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Allowed {
    Host(String),
    Network(Network),
}

impl Policy {
    /// Public addresses only.
    pub fn public() -> Self {
        Self::default()
    }

    /// Whether loopback, private and link-local addresses are allowed.
    pub fn allow_private(mut self, allow: bool) -> Self {
        self.private = allow;
        self
    }

    /// Allows one host by its name (private addresses for it alone), or one network (`10.1.0.0/16`, `fd12::/16`, one address).
    pub fn allow(mut self, host_or_network: &str) -> Result<Self, Invalid> {
        self.allowed.push(Allowed::parse(host_or_network)?);
        Ok(self)
    }

    /// The policy for one host: a host that is allowed by name may have private addresses.
    pub(super) fn of_host(&self, host: &str) -> Self {
        let host = bare(host);
        let named = |a: &Allowed| matches!(a, Allowed::Host(name) if name.eq_ignore_ascii_case(host));
        Self {
            private: self.private || self.allowed.iter().any(named),
            allowed: self.allowed.clone(),
        }
    }

    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    fn covers(&self, ip: IpAddr) -> bool {
        let inside = |a: &Allowed| matches!(a, Allowed::Network(network) if network.contains(ip));
        self.allowed.iter().any(inside)
    }
}

impl Allowed {
    fn parse(text: &str) -> Result<Self, Invalid> {
        let refused = |problem: &str| Err(Invalid::new("allow", format!("{:?} {problem}", excerpt(text))));
        if text.contains('/') || text.parse::<IpAddr>().is_ok() {
            return match text.parse() {
                Ok(network) => Ok(Self::Network(network)),
                Err(problem) => refused(problem),
            };
        }
        let name = bare(text);
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        if name.is_empty() || name.len() > 253 || !name.bytes().all(fits) {
            return refused("is neither a host name nor a network such as 10.1.0.0/16");
        }
        Ok(Self::Host(name.to_ascii_lowercase()))
    }
}

fn excerpt(text: &str) -> String {
    posthouse_core::text::excerpt(text, 64)
}

/// Without the dot that may end a full name.
fn bare(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

/// Addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    base: u128,
    bits: u32,
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (base, length) = match text.split_once('/') {
            Some((base, length)) => (base, Some(length)),
            None => (text, None),
        };
        let base: IpAddr = base.parse().map_err(|_| "does not begin with an address")?;
        let width = if base.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Ok(width), str::parse::<u32>);
        let length = length.ok().filter(|length| *length <= width);
        let bits = length.ok_or("does not end with a number of bits")? + 128 - width;
        let network = Self {
            base: number(base),
            bits,
        };
        if network.base & !network.mask() != 0 {
            return Err("has bits beyond its length; write the network's first address");
        }
        Ok(network)
    }
}

impl Network {
    fn mask(self) -> u128 {
        u128::MAX.checked_shl(128 - self.bits).unwrap_or(0)
    }

    fn contains(self, ip: IpAddr) -> bool {
        number(ip) & self.mask() == self.base
    }
}

/// One line of numbers for both families: IPv4 where its mapped form is in IPv6.
fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// What an address is that is not an ordinary public one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A cloud's metadata service, which hands out credentials.
    Metadata,
    /// This machine.
    Loopback,
    /// A network of one's own.
    Private,
    /// This wire.
    LinkLocal,
    /// A provider's shared space.
    Shared,
    /// For measuring networks.
    Benchmarking,
    /// No address at all.
    Unspecified,
    /// Many at once.
    Multicast,
    /// All at once.
    Broadcast,
    /// For examples in documents.
    Documentation,
    /// For the protocols themselves, or for later.
    Reserved,
    /// IPv6 that stands for an IPv4 address: mapped, translated or tunnelled.
    Embedded,
}

impl Kind {
    /// Whether `allow_private` opens it.
    pub fn is_private(self) -> bool {
        use Kind::{Benchmarking, LinkLocal, Loopback, Private, Shared};
        matches!(self, Loopback | Private | LinkLocal | Shared | Benchmarking)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Metadata => "metadata service",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::LinkLocal => "link-local",
            Self::Shared => "shared (CGNAT)",
            Self::Benchmarking => "benchmarking",
            Self::Unspecified => "unspecified",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Documentation => "documentation",
            Self::Reserved => "reserved",
            Self::Embedded => "IPv4 inside IPv6",
        })
    }
}

/// Whether this address may be dialled; if not, what it is.
pub fn allowed(ip: IpAddr, policy: &Policy) -> Result<(), Kind> {
    let inner = || inner(ip).map(IpAddr::V4);
    if is_metadata(ip) || inner().any(is_metadata) {
        return Err(Kind::Metadata);
    }
    match kind(ip) {
        None => Ok(()),
        // A network that is named also stands for what its addresses stand for, where that is allowed itself.
        Some(Kind::Embedded) if policy.private || policy.covers(ip) => inner().try_for_each(|ip| allowed(ip, policy)),
        Some(_) if policy.covers(ip) => Ok(()),
        Some(kind) if policy.private && kind.is_private() => Ok(()),
        Some(kind) => Err(kind),
    }
}

/// Whether a name is this machine by its spelling alone, whatever a resolver may say.
pub(super) fn is_local_name(host: &str) -> bool {
    let host = bare(host).to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost") || host == "localhost.localdomain"
}

fn is_metadata(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => matches!(
            v4.octets(),
            // Nearly everybody's; container credentials; others of single providers, the last of them in public space.
            [169, 254, 169 | 170, _]
                | [169, 254, 42, 42]
                | [100, 100, 100, 200]
                | [192, 0, 0, 192]
                | [168, 63, 129, 16]
        ),
        IpAddr::V6(v6) => matches!(
            v6.segments(),
            [0xfd00, 0xec2, ..]
                | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]
                | [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]
                | [0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe]
        ),
    }
}

/// What it is, if it is not an ordinary public address.
fn kind(ip: IpAddr) -> Option<Kind> {
    match ip {
        IpAddr::V4(v4) => kind_v4(v4),
        IpAddr::V6(v6) => kind_v6(v6),
    }
}

fn kind_v4(ip: Ipv4Addr) -> Option<Kind> {
    Some(match ip.octets() {
        [0, 0, 0, 0] => Kind::Unspecified,
        [255, 255, 255, 255] => Kind::Broadcast,
        [127, ..] => Kind::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Kind::Private,
        [169, 254, ..] => Kind::LinkLocal,
        [100, 64..=127, ..] => Kind::Shared,
        [198, 18 | 19, ..] => Kind::Benchmarking,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Kind::Documentation,
        [224..=239, ..] => Kind::Multicast,
        // "This network"; protocol assignments; AS112; the retired 6to4 relays; AMT; what nobody has yet.
        [0, ..] | [192, 0, 0, _] | [192, 31, 196, _] | [192, 88, 99, _] | [192, 52, 193, _] | [192, 175, 48, _] => {
            Kind::Reserved
        }
        [240..=255, ..] => Kind::Reserved,
        _ => return None,
    })
}

fn kind_v6(ip: Ipv6Addr) -> Option<Kind> {
    Some(match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Kind::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => Kind::Loopback,
        _ if inner(IpAddr::V6(ip)).next().is_some() => Kind::Embedded,
        [0xff00..=0xffff, ..] => Kind::Multicast,
        [0xfe80..=0xfebf, ..] => Kind::LinkLocal,
        // Unique local, and the site-local that it replaced.
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Kind::Private,
        [0x2001, 2, 0, ..] => Kind::Benchmarking,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Kind::Documentation,
        // Protocol assignments, ORCHID among them; AS112.
        [0x2001, 0..=0x1ff, ..] | [0x2620, 0x4f, 0x8000, ..] => Kind::Reserved,
        [0x2000..=0x3fff, ..] => return None,
        // Global addresses are all in 2000::/3; whatever else may come is judged when it comes.
        _ => Kind::Reserved,
    })
}

/// The IPv4 addresses that an IPv6 address may stand for: all that are possible, where it depends on somebody's configuration.
fn inner(ip: IpAddr) -> impl Iterator<Item = Ipv4Addr> {
    let IpAddr::V6(v6) = ip else {
        return [None; 5].into_iter().flatten();
    };
    let bits = v6.to_bits();
    let at = |first: u32| Some(Ipv4Addr::from_bits((bits >> (96 - first)) as u32));
    // After a prefix that leaves so many bits of it before the reserved byte at bit 64.
    let around = |before: u32| {
        let high = bits >> 64 & ((1 << before) - 1);
        let low = bits & ((1 << 56) - 1);
        Some(Ipv4Addr::from_bits(
            (high << (32 - before) | low >> (24 + before)) as u32,
        ))
    };
    let found = match v6.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None; 5],
        // Compatible, mapped, and translated (::ffff:0:0:0/96).
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => [at(96), None, None, None, None],
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => [at(96), None, None, None, None],
        // NAT64 with a prefix of one's own: 48, 56, 64 or 96 bits.
        [0x64, 0xff9b, 1, ..] => [around(16), around(8), around(0), at(96), None],
        // 6to4, and Teredo: its server, and the client turned inside out.
        [0x2002, ..] => [at(16), None, None, None, None],
        [0x2001, 0, ..] => [at(32), Some(Ipv4Addr::from_bits(!(bits as u32))), None, None, None],
        // ISATAP.
        [_, _, _, _, 0 | 0x200, 0x5efe, _, _] => [at(96), None, None, None, None],
        _ => [None; 5],
    };
    found.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn private_networks_are_opened_by_name_or_by_network_and_nothing_else_is() {
        let ten = Policy::public().allow("10.1.0.0/16").unwrap();
        assert_eq!(allowed(ip("10.1.2.3"), &ten), Ok(()));
        assert_eq!(allowed(ip("::ffff:10.1.2.3"), &ten), Ok(()));
        assert_eq!(allowed(ip("10.2.0.1"), &ten), Err(Kind::Private));
        assert_eq!(allowed(ip("127.0.0.1"), &ten), Err(Kind::Loopback));
        let named = Policy::public().allow("Billing.internal.").unwrap();
        assert_eq!(allowed(ip("10.2.0.1"), &named.of_host("billing.internal")), Ok(()));
        assert_eq!(
            allowed(ip("10.2.0.1"), &named.of_host("other.internal")),
            Err(Kind::Private)
        );
        assert_eq!(
            allowed(ip("224.0.0.1"), &named.of_host("billing.internal")),
            Err(Kind::Multicast)
        );
    }

    #[test]
    fn metadata_services_stay_closed_in_every_policy_and_form() {
        let open = Policy::public()
            .allow_private(true)
            .allow("0.0.0.0/0")
            .unwrap()
            .allow("::/0")
            .unwrap();
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "169.254.42.42",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:42::42",
            "fe80::a9fe:a9fe",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "64:ff9b:1:a9fe:a9:fe00::",
            "64:ff9b:1:fa9:fe:a9fe::",
            "64:ff9b:1:0:a9:fea9:fe00::",
            "2002:a9fe:a9fe::1",
            "2001:0:a9fe:a9fe::1",
            "2001:0:808:808::5601:5601",
            "2606:4700::5efe:169.254.169.254",
            "2606:4700::200:5efe:a9fe:a9fe",
        ] {
            assert_eq!(allowed(ip(address), &open), Err(Kind::Metadata), "{address}");
            assert_eq!(
                allowed(ip(address), &Policy::public()),
                Err(Kind::Metadata),
                "{address}"
            );
        }
        assert_eq!(allowed(ip("10.0.0.1"), &open), Ok(()));
    }

    #[test]
    fn allow_private_opens_what_is_private_and_no_more() {
        let private = Policy::public().allow_private(true);
        for address in [
            "127.0.0.1",
            "10.0.0.1",
            "::1",
            "fd12::1",
            "fe80::1",
            "100.64.0.1",
            "::ffff:10.0.0.1",
            "198.18.0.1",
        ] {
            assert_eq!(allowed(ip(address), &private), Ok(()), "{address}");
        }
        for address in [
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "ff02::1",
            "240.0.0.1",
            "192.0.2.1",
            "::",
            "2001:db8::1",
        ] {
            assert!(allowed(ip(address), &private).is_err(), "{address}");
        }
    }

    #[test]
    fn a_translated_network_that_is_allowed_opens_public_addresses_in_it_alone() {
        let nat64 = Policy::public().allow("64:ff9b::/96").unwrap();
        assert_eq!(allowed(ip("64:ff9b::8.8.8.8"), &nat64), Ok(()));
        assert_eq!(allowed(ip("64:ff9b::10.0.0.1"), &nat64), Err(Kind::Private));
        assert_eq!(allowed(ip("64:ff9b::8.8.8.8"), &Policy::public()), Err(Kind::Embedded));
    }

    #[test]
    fn what_is_neither_a_host_nor_a_network_is_refused() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "::/129",
            "10.0.0.0/",
            "/8",
            "a b",
            "*.internal",
            "x/8",
            "10.0.0.0/-1",
        ] {
            assert_eq!(Policy::public().allow(text).unwrap_err().field, "allow", "{text}");
        }
        assert_eq!(
            allowed(ip("10.0.0.7"), &Policy::public().allow("10.0.0.7").unwrap()),
            Ok(())
        );
        assert_eq!(
            allowed(ip("10.0.0.7"), &Policy::public().allow("0.0.0.0/0").unwrap()),
            Ok(())
        );
    }

    #[test]
    fn public_addresses_are_allowed() {
        for address in [
            "8.8.8.8",
            "1.1.1.1",
            "93.184.215.14",
            "2606:4700:4700::1111",
            "2a00:1450:4001::1",
            "172.32.0.1",
            "100.128.0.1",
            "11.0.0.1",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "223.255.255.255",
            "2001:4860:4860::8888",
        ] {
            assert_eq!(allowed(ip(address), &Policy::public()), Ok(()), "{address}");
        }
    }
}
