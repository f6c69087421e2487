//! Topics that name their URL themselves, `http:https://shop.example/hook`: only to hosts that `[explicit]` lists, because a producer
//! must not aim the relay. What is told of one is scheme, host and a hash; the rest of it may be a secret.

use posthouse::{Error, Invalid, http::Http, relay::Destination};
use std::time::Duration;
use url::Url;

use crate::config::Explicit;

/// What such topics begin with.
pub const PREFIX: &str = "http:";

/// Makes a destination of a URL, for [`Relay::explicit`](posthouse::Relay::explicit). `timeout` is how long a send may take, and `dress`
/// gives the destination its rules, that timeout among them.
pub fn maker(
    explicit: Explicit,
    timeout: Duration,
    dress: impl Fn(Destination) -> Destination + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<Destination, Error> + Send + Sync + 'static {
    move |address| {
        let refused = |problem: String| Error::from(Invalid::new("topic", problem));
        let url = Url::parse(address).map_err(|_| refused("names no URL; write http:https://HOST/PATH".into()))?;
        let host = url.host_str().unwrap_or_default();
        if !explicit.allows(host) {
            return Err(refused(format!(
                "names the host {host:?}, which the relay's configuration does not list ([explicit] http)"
            )));
        }
        // It answers before the relay gives up, because it knows more about what happened.
        let http = Http::builder(address).timeout(timeout - timeout / 20);
        let http = http.allow(explicit.allow.iter().map(ToString::to_string));
        let http = http.build().map_err(|invalid| refused(invalid.problem))?;
        let name = http.name().to_owned();
        Ok(dress(Destination::new(name, http)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(hosts: &[&str], url: &str) -> Result<String, String> {
        let explicit = Explicit {
            http: hosts.iter().map(|host| (*host).to_owned()).collect(),
            allow: Vec::new(),
        };
        let maker = maker(explicit, Duration::from_secs(10), |to| to.concurrency(4));
        let topic = format!("{PREFIX}{url}");
        maker(&topic[PREFIX.len()..])
            .map(|to| format!("{to:?}"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn only_listed_hosts_may_be_named() {
        let hosts = ["shop.example", "*.hooks.example"];
        for url in [
            "http://shop.example/s3cret",
            "http://SHOP.example:8080/?s3cret",
            "http://a.b.hooks.example/s3cret",
        ] {
            let shown = made(&hosts, url).unwrap();
            assert!(shown.contains("example") && shown.contains("concurrency: 4"), "{shown}");
            assert!(!shown.contains("s3cret"), "{shown}");
        }
        for url in [
            "http://evil.example/s3cret",
            "http://hooks.example/s3cret",
            "http://evilhooks.example/s3cret",
            "http://shop.example.evil/s3cret",
            "http://shop.example@evil.example/s3cret",
            "http://127.0.0.1/s3cret",
            "http:///shop.example/s3cret",
            "file:///s3cret",
            "s3cret",
            "",
        ] {
            let refused = made(&hosts, url).unwrap_err();
            assert!(
                refused.contains("topic") && !refused.contains("s3cret"),
                "{url}: {refused}"
            );
        }
        assert!(made(&[], "http://shop.example/").is_err());
    }

    /// A host that is listed is judged like that of a route all the same.
    #[test]
    fn what_is_listed_must_still_be_sound_and_public() {
        for url in [
            "http://user:s3cret@shop.example/",
            "http://shop.example/#s3cret",
            "http://localhost/s3cret",
            "ftp://shop.example/s3cret",
        ] {
            let refused = made(&["shop.example", "localhost"], url).unwrap_err();
            assert!(!refused.contains("s3cret"), "{url}: {refused}");
        }
    }

    #[test]
    fn each_url_has_a_name_of_its_own() {
        let name = |url: &str| made(&["shop.example"], url).unwrap();
        assert_ne!(name("http://shop.example/a"), name("http://shop.example/b"));
        assert_eq!(name("http://shop.example/a"), name("http://SHOP.example/a"));
    }
}
