//! The address of a server, and a limit on the time to connect: TCP, TLS and PostgreSQL's startup together.

use posthouse_core::Error;
use std::time::Duration;
use tokio_postgres::{Client, Config, Connection, Socket, config::Host, tls::MakeTlsConnect};

use crate::{
    error::from_driver,
    tls::{self, Connector},
};

/// The time to connect, for each host in the URL, without `connect_timeout` there.
const WITHIN: Duration = Duration::from_secs(10);
/// The part of it that TCP may take for one address of a host, so that there is time for the next address.
const ACCEPT: Duration = Duration::from_secs(5);

/// A server, as a URL names it.
#[derive(Clone)]
pub(crate) struct Target {
    pub config: Config,
    pub tls: Connector,
    within: Duration,
}

type Reached = (
    Client,
    Connection<Socket, <Connector as MakeTlsConnect<Socket>>::Stream>,
);

impl Target {
    /// Reads the URL, and sets the timeouts that it does not set.
    pub fn read(url: &str) -> Result<Self, Error> {
        let (mut config, tls) = tls::read(url)?;
        let each = config.get_connect_timeout().copied();
        if each.is_none() {
            config.connect_timeout(ACCEPT);
        }
        // A machine that is gone sends nothing. Keepalive probes give it up within 10 s, and do not give up a busy one. Values in the URL win.
        if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
            config.keepalives_idle(Duration::from_secs(4));
            config.keepalives_interval(Duration::from_secs(2));
            config.keepalives_retries(3);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(10));
        }
        config.application_name("posthouse");
        let hosts = config.get_hosts().len().max(config.get_hostaddrs().len()).max(1);
        let within = each.unwrap_or(WITHIN) * u32::try_from(hosts).unwrap_or(u32::MAX);
        Ok(Self { config, tls, within })
    }

    /// The time that a connection may take.
    pub const fn within(&self) -> Duration {
        self.within
    }

    /// Connects within that time.
    pub async fn connect(&self) -> Result<Reached, Error> {
        let connecting = self.config.connect(Connector::clone(&self.tls));
        match tokio::time::timeout(self.within, connecting).await {
            Ok(reached) => reached.map_err(from_driver),
            Err(_) => Err(self.silent()),
        }
    }

    /// The error of a server that did not finish the connection in time.
    pub fn silent(&self) -> Error {
        let text = format!(
            "{} did not finish a connection within {} seconds; check the host and the port, that PostgreSQL or its pooler answers there, \
             and that no firewall drops the packets (connect_timeout in the URL sets the time, in seconds)",
            self.places(),
            self.within.as_secs()
        );
        Error::Timeout(text.into())
    }

    /// Hosts and ports.
    fn places(&self) -> String {
        let (hosts, addresses, ports) = (
            self.config.get_hosts(),
            self.config.get_hostaddrs(),
            self.config.get_ports(),
        );
        let place = |at: usize| {
            let host = match (hosts.get(at), addresses.get(at)) {
                (Some(Host::Tcp(name)), _) => name.clone(),
                (Some(Host::Unix(folder)), _) => folder.display().to_string(),
                (None, Some(address)) => address.to_string(),
                (None, None) => String::new(),
            };
            let port = ports.get(at).or_else(|| ports.first()).copied().unwrap_or(5432);
            format!("{host} port {port}")
        };
        let places: Vec<_> = (0..hosts.len().max(addresses.len())).map(place).collect();
        places.join(", ")
    }
}
