//! The reference store under the suite, and the suite under its own controls.

mod controls;
mod coverage;
mod reference;

mod memory {
    async fn fixture() -> posthouse_testkit::MemoryFixture {
        posthouse_testkit::MemoryFixture::new()
    }

    posthouse_testkit::conformance!(super::fixture);
}
