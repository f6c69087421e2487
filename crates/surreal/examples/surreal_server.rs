//! SurrealDB's own server, as its crate makes it, for the tests: no registry has it as a program. It takes what `surreal` takes.

fn main() -> std::process::ExitCode {
    surrealdb_server::init(surrealdb_server::core::CommunityComposer())
}
