//! The reference store under the suite, and the suite under its own controls.

mod controls;
mod coverage;
mod ledger_model;
mod model;
mod reference;
mod saga_model;

mod memory {
    async fn fixture() -> posthouse_testkit::MemoryFixture {
        posthouse_testkit::MemoryFixture::new()
    }

    posthouse_testkit::conformance!(super::fixture);
}
