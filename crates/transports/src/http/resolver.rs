//! Looks names up and judges the answers: the address that was checked is the one that is dialled.

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
};

use super::guard::{self, Kind, Policy};

/// The addresses of a name, as somebody is finding them out.
pub type LookingUp = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Whoever looks names up.
pub(super) type Lookup = Arc<dyn Fn(String) -> LookingUp + Send + Sync>;

/// The system's own resolver: the hosts file, the name servers, whatever the machine has.
pub(super) fn system() -> Lookup {
    Arc::new(|name| {
        Box::pin(async move {
            // The port is put in by whoever dials.
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    })
}

/// The resolver of one client, for one policy. It is asked anew for each connection.
pub(super) struct Guarded {
    pub lookup: Lookup,
    pub policy: Policy,
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let name = name.as_str().to_owned();
        let (looking_up, policy) = ((self.lookup)(name.clone()), self.policy.of_host(&name));
        Box::pin(async move {
            let found = looking_up.await.map_err(Unresolved::Failed)?;
            if found.is_empty() {
                return Err(Unresolved::Empty.into());
            }
            // One wrong answer spoils all: somebody is trying something, or two views of one name are mixed up.
            for address in &found {
                check(*address, &policy)?;
            }
            let addresses: Addrs = Box::new(found.into_iter().map(|ip| SocketAddr::new(ip, 0)));
            Ok(addresses)
        })
    }
}

/// An address that may not be dialled.
#[derive(Debug)]
pub(super) struct Blocked {
    address: IpAddr,
    kind: Kind,
}

/// Judges an address; the error says what to do.
pub(super) fn check(address: IpAddr, policy: &Policy) -> Result<(), Blocked> {
    guard::allowed(address, policy).map_err(|kind| Blocked { address, kind })
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, kind } = self;
        write!(f, "{address} ({kind}) is not a public address; ")?;
        match kind {
            Kind::Metadata => write!(f, "nothing is ever sent there"),
            kind if kind.is_private() => write!(f, "set allow_private = true, or name it in allow, if it is meant"),
            _ => write!(f, "name it in allow, if it is meant"),
        }
    }
}

impl std::error::Error for Blocked {}

/// A name without addresses.
#[derive(Debug)]
pub(super) enum Unresolved {
    Failed(io::Error),
    Empty,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "the name cannot be looked up: {error}"),
            Self::Empty => f.write_str("the name has no address"),
        }
    }
}

impl std::error::Error for Unresolved {}
