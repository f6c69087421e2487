//! The PostgreSQL store: the shared suite, and what is PostgreSQL's own.

mod contract;
mod controls;
mod documentation;
mod fixture;

mod suite {
    posthouse_testkit::conformance!(crate::fixture::PostgresFixture::new);
}
