//! Memories on their way into a memory service: `memory_writeback [URL]`. See `examples/memory_writeback`.

// It is a program for people to look at.
#![allow(clippy::print_stdout)]

mod story;

#[tokio::main]
async fn main() -> Result<(), story::Failure> {
    let scratch = tempfile::tempdir()?;
    let own = format!("sqlite://{}/memories.db", scratch.path().display());
    let url = std::env::args().nth(1).unwrap_or(own);
    story::tell(&url, |line| println!("{line}")).await
}
