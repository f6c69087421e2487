//! The first thing that users read.

/// What the README shows is a program that is built.
#[test]
fn the_readme_shows_the_quickstart_as_it_is() {
    let program = include_str!("../examples/quickstart.rs");
    let shown = &program[program.find("use posthouse").unwrap()..];
    let readme = include_str!("../../../README.md");
    assert!(
        readme.contains(&format!("```rust\n{shown}```\n")),
        "the README should show this:\n{shown}"
    );
}
