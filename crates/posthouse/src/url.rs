//! What a store's URL says. Pure; and careful, because a URL may hold a password, which no error may repeat.

use posthouse_core::{Error, Invalid, text::excerpt};

/// A store as its URL names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// A PostgreSQL server; the URL as its driver takes it, and the schema in it.
    Postgres { url: String, schema: Option<String> },
    /// A SQLite file.
    Sqlite { path: String },
    /// A SurrealDB database: a server's, or one in a folder. The store itself knows what the URL says.
    Surreal { url: String },
}

impl StoreUrl {
    /// Reads `sqlite://path`, `sqlite:path`, `postgres://...`, `postgresql://...`, `surrealdb://...` and `surrealkv://...`.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let Some((scheme, rest)) = url.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
            return Err(refused(format!("is not a URL; {KNOWN}")));
        };
        match (scheme, rest.strip_prefix("//")) {
            ("sqlite", rest_of_url) => sqlite(rest_of_url.unwrap_or(rest)),
            ("postgres" | "postgresql", Some(_)) => postgres(url),
            ("surrealdb" | "surrealkv", Some(_)) => surreal(url),
            _ => Err(refused(format!(
                "{} is of no kind that is known; {KNOWN}",
                shown(scheme, rest)
            ))),
        }
    }
}

const KNOWN: &str = "write sqlite://PATH or postgres://USER@HOST/DATABASE, or with the feature surreal \
                     surrealdb://USER:PASSWORD@HOST/NAMESPACE/DATABASE or surrealkv://FOLDER";

fn sqlite(path: &str) -> Result<StoreUrl, Error> {
    if path.is_empty() {
        return Err(refused("names no file; write sqlite://PATH"));
    }
    if path == ":memory:" {
        return Err(refused(
            "must be a file: what is in memory is gone with its connection; write sqlite://PATH",
        ));
    }
    if path.contains('?') {
        return Err(refused(
            "has parameters, and a SQLite store takes none; write sqlite://PATH",
        ));
    }
    Ok(StoreUrl::Sqlite { path: path.to_owned() })
}

fn surreal(url: &str) -> Result<StoreUrl, Error> {
    #[cfg(feature = "surreal")]
    posthouse_surreal::Address::parse(url)?;
    Ok(StoreUrl::Surreal { url: url.to_owned() })
}

/// Takes `schema` out of the parameters: the driver does not know it.
fn postgres(url: &str) -> Result<StoreUrl, Error> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let is_schema = |pair: &&str| pair.starts_with("schema=");
    let mut schemas = query
        .split('&')
        .filter(is_schema)
        .map(|pair| pair["schema=".len()..].to_owned());
    let schema = schemas.next();
    if schemas.next().is_some() {
        return Err(refused("names the schema twice"));
    }
    let others: Vec<_> = query
        .split('&')
        .filter(|pair| !is_schema(pair) && !pair.is_empty())
        .collect();
    let mark = if others.is_empty() { "" } else { "?" };
    let url = format!("{base}{mark}{}", others.join("&"));
    Ok(StoreUrl::Postgres { url, schema })
}

/// Scheme and host, as far as they can be told from a password.
fn shown(scheme: &str, rest: &str) -> String {
    // A password may hold any character, so everything up to the last @ may be one.
    let Some(rest) = rest.strip_prefix("//") else {
        return format!("{:?}", excerpt(&format!("{scheme}:"), 32));
    };
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let host = host.split([':', '/', '?', '#']).next().unwrap_or_default();
    format!("{:?}", excerpt(&format!("{scheme}://{host}"), 64))
}

/// A URL without its password and without parameters but those that are known to be harmless: for settings that people look at.
pub(crate) fn without_secrets(url: &str) -> String {
    let (Some((scheme, rest)), Ok(parsed)) = (url.split_once("://"), StoreUrl::parse(url)) else {
        return match StoreUrl::parse(url) {
            Ok(StoreUrl::Sqlite { path }) => format!("sqlite://{path}"),
            _ => "***".to_owned(),
        };
    };
    if let StoreUrl::Sqlite { path } = parsed {
        return format!("sqlite://{path}");
    }
    // A password may hold any character, so everything between the first colon and the last @ may be one.
    let (user, place) = match rest.rsplit_once('@') {
        Some((user, place)) => (user.split_once(':').map_or(user, |(user, _)| user), place),
        None => ("", rest),
    };
    let (place, query) = place.split_once('?').unwrap_or((place, ""));
    let harmless = |pair: &&str| {
        [
            "schema=",
            "sslmode=",
            "sslrootcert=",
            "tls=",
            "namespace=",
            "database=",
            "sync=",
        ]
        .iter()
        .any(|name| pair.starts_with(name))
    };
    let kept: Vec<_> = query.split('&').filter(harmless).collect();
    let at = if user.is_empty() { "" } else { "@" };
    let mark = if kept.is_empty() { "" } else { "?" };
    format!("{scheme}://{user}{at}{place}{mark}{}", kept.join("&"))
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn refused(problem: impl Into<String>) -> Error {
    Error::Invalid(Invalid::new("store", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqlite(path: &str) -> StoreUrl {
        StoreUrl::Sqlite { path: path.to_owned() }
    }

    fn problem(url: &str) -> String {
        StoreUrl::parse(url).unwrap_err().to_string()
    }

    #[test]
    fn a_sqlite_url_is_a_path() {
        for (url, path) in [
            ("sqlite://shop.db", "shop.db"),
            ("sqlite:shop.db", "shop.db"),
            ("sqlite:///var/lib/shop.db", "/var/lib/shop.db"),
            ("sqlite:/var/lib/shop.db", "/var/lib/shop.db"),
            ("sqlite://../a b.db", "../a b.db"),
        ] {
            assert_eq!(StoreUrl::parse(url).unwrap(), sqlite(path), "{url}");
        }
    }

    #[test]
    fn a_sqlite_url_that_names_no_file_says_what_to_write() {
        assert!(problem("sqlite://").contains("names no file"));
        assert!(problem("sqlite::memory:").contains("must be a file"));
        assert!(problem("sqlite://shop.db?mode=rwc").contains("takes none"));
    }

    #[test]
    fn the_schema_is_taken_out_of_a_postgres_url_and_the_rest_stays() {
        for (url, plain, schema) in [
            ("postgres://u@h/d", "postgres://u@h/d", None),
            ("postgresql://u@h/d?schema=shop", "postgresql://u@h/d", Some("shop")),
            ("postgres://h/d?a=1&schema=s&b=2", "postgres://h/d?a=1&b=2", Some("s")),
            ("postgres://h/d?a=1", "postgres://h/d?a=1", None),
            ("postgres://h/d?schema=", "postgres://h/d", Some("")),
        ] {
            let expected = StoreUrl::Postgres {
                url: plain.to_owned(),
                schema: schema.map(str::to_owned),
            };
            assert_eq!(StoreUrl::parse(url).unwrap(), expected, "{url}");
        }
        assert!(problem("postgres://h/d?schema=a&schema=b").contains("twice"));
    }

    #[test]
    fn an_unknown_kind_is_named_with_its_host_and_what_is_known() {
        assert_eq!(
            problem("mysql://root:s3cret@db.example:3306/shop"),
            format!("store: \"mysql://db.example\" is of no kind that is known; {KNOWN}")
        );
    }

    #[test]
    fn what_is_shown_has_no_password() {
        for (url, shown) in [
            ("sqlite:shop.db", "sqlite://shop.db"),
            (
                "postgres://u:s3cret@h:5432/d?schema=s",
                "postgres://u@h:5432/d?schema=s",
            ),
            ("postgres://u:s3c@ret/?:@h/d", "postgres://u@h/d"),
            (
                "postgres://u@h/d?password=s3cret&sslmode=require",
                "postgres://u@h/d?sslmode=require",
            ),
            ("postgresql://h/d", "postgresql://h/d"),
            (
                "surrealdb://u:s3cret@h:8000/n/d?tls=true",
                "surrealdb://u@h:8000/n/d?tls=true",
            ),
            (
                "surrealkv://shop.db?namespace=n&database=d",
                "surrealkv://shop.db?namespace=n&database=d",
            ),
            ("mysql://u:s3cret@h/d", "***"),
            ("s3cret", "***"),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }

    #[test]
    fn no_error_repeats_a_password() {
        for url in [
            "mysql://root:s3cret@h/d",
            "mysql://root:s3cret@@h/d",
            "mysql://root:s/s3cret@h/d",
            "mysql://root:s?s3cret#@h/d",
            "mysql://root:s3cret",
            "mysql://h/d?password=s3cret",
            "mysql:root:s3cret@h",
            "host=h password=s3cret",
            "root:s3cret@h/d",
            "s3cret",
            "postgres:root:s3cret@h",
            "surrealdb:root:s3cret@h",
        ] {
            let problem = problem(url);
            assert!(!problem.contains("s3cret"), "{url}: {problem}");
            assert!(problem.contains("sqlite://PATH"), "{problem}");
        }
    }
}
