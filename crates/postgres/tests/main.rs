//! The PostgreSQL store: the shared suite, and what is PostgreSQL's own.

mod fixture;

mod suite {
    posthouse_testkit::conformance!(crate::fixture::PostgresFixture::new);
}
