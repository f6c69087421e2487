//! URLs of databases.

use posthouse_core::Durability;
use posthouse_surreal::Address;

fn problem(url: &str) -> String {
    Address::parse(url).unwrap_err().to_string()
}

#[test]
fn a_url_is_shown_without_its_password() {
    for (url, shown) in [
        (
            "surrealdb://root:s3cret@h/shop/orders",
            "surrealdb://root@h:8000/shop/orders",
        ),
        (
            "surrealdb://h:9000/a%20b/c?tls=true",
            "surrealdb://h:9000/a%20b/c?tls=true",
        ),
        ("surrealdb://u:s3c%40ret@[::1]/a/b", "surrealdb://u@[::1]:8000/a/b"),
        (
            "surrealdb://h/a/b?sslrootcert=/etc/ca.pem&tls=true",
            "surrealdb://h:8000/a/b?tls=true&sslrootcert=/etc/ca.pem",
        ),
        ("surrealkv://shop.db", "surrealkv://shop.db"),
        (
            "surrealkv:///var/lib/shop.db?sync=every",
            "surrealkv:///var/lib/shop.db",
        ),
        (
            "surrealkv://../a b.db?database=d&sync=1s&namespace=n",
            "surrealkv://../a b.db?namespace=n&database=d&sync=1s",
        ),
        ("surrealkv://./a@b/shop.db", "surrealkv://./a@b/shop.db"),
        ("surrealkv:///var/lib/a@b", "surrealkv:///var/lib/a@b"),
        (
            "surrealkv://shop.db?namespace=a%40b",
            "surrealkv://shop.db?namespace=a%40b&database=main",
        ),
        ("mem://", "mem://"),
    ] {
        let address = Address::parse(url).unwrap();
        assert_eq!(address.to_string(), shown);
        assert_eq!(format!("{address:?}"), shown);
        // What is shown leads to the same place, but for the password.
        if !shown.starts_with("surrealdb") || !shown.contains('@') {
            assert_eq!(Address::parse(shown).unwrap(), address);
        }
    }
}

#[test]
fn what_a_commit_survives_goes_by_the_engine() {
    for (url, durability) in [
        ("mem://", Durability::Process),
        ("surrealkv://a", Durability::Machine),
        ("surrealkv://a?sync=every", Durability::Machine),
        ("surrealkv://a?sync=never", Durability::System),
        ("surrealkv://a?sync=500ms", Durability::System),
        ("surrealdb://h/a/b", Durability::Server),
    ] {
        assert_eq!(Address::parse(url).unwrap().durability(), durability, "{url}");
    }
}

#[test]
fn a_url_that_says_too_little_or_too_much_is_refused_with_what_to_write() {
    for (url, said) in [
        ("surrealdb://", "names no host"),
        ("surrealdb://h:port/a/b", "cannot be read"),
        ("surrealdb://h", "a namespace and a database"),
        ("surrealdb://h/only", "a namespace and a database"),
        ("surrealdb://h/a/b/c", "a namespace and a database"),
        ("surrealdb://h//b", "an empty namespace"),
        ("surrealdb://h/a/", "an empty database"),
        ("surrealdb://root@h/a/b", "a user without a password"),
        ("surrealdb://:pass@h/a/b", "a password, and no user"),
        ("surrealdb://h/a/b?tls=maybe", "neither true nor false"),
        ("surrealdb://h/a/b?sslrootcert=/etc/ca.pem", "goes with tls=true"),
        ("surrealdb://h/a/b?schema=x", "a parameter that is not known"),
        ("surrealdb://h/a%FF/b", "not UTF-8 in the namespace"),
        ("surrealkv://", "names no folder"),
        ("surrealkv://?sync=every", "names no folder"),
        (
            "surrealkv://root:pass@host:8000/shop/orders",
            "begins with surrealdb://",
        ),
        ("surrealkv://a@b", "write ./ in front of a folder"),
        (
            "surrealkv://a?versioned=true",
            "a parameter \"versioned\" that is not known",
        ),
        ("surrealkv://a?sync=sometimes", "a sync that is none of"),
        ("surrealkv://a?sync=100ms", "a sync that is none of"),
        ("surrealkv://a?sync=0s", "a sync that is none of"),
        ("surrealkv://a?sync=", "a sync that is none of"),
        ("mem://?sync=never", "a parameter \"sync\" that is not known"),
        ("rocksdb://a", "is no URL of SurrealDB; write surrealdb://"),
        ("shop", "is no URL of SurrealDB; write surrealdb://"),
    ] {
        let problem = problem(url);
        assert!(
            problem.starts_with("store: ") && problem.contains(said),
            "{url}: {problem}"
        );
    }
}

#[test]
fn no_error_repeats_a_password() {
    for url in [
        "surrealdb://root:s3cret@h",
        "surrealdb://root:s/s3cret@h/a/b",
        "surrealdb://root:s3cret@/a/b",
        "surrealdb://root:1/a/b?s3cret@h",
        "surrealdb://root:s3cret@h/a/b?tls=s3cret",
        "surrealdb:root:s3cret@h",
        "surrealkv://root:s3cret@host:8000/shop/orders",
        "surrealkv://root:s/3/s3cret@host/shop/orders",
        "surrealkv://root:?s3cret@host/shop/orders",
        "root:s3cret@h",
    ] {
        let problem = problem(url);
        assert!(!problem.contains("s3cret"), "{url}: {problem}");
    }
}
