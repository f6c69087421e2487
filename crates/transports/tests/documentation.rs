//! The example of `docs/webhooks.md` prints what the page says. Its table of answers is compared in `answer.rs`.

use posthouse_testkit::page::{examples, masked, python, run};

#[test]
fn the_example_of_the_page_prints_what_it_says() {
    let examples = examples(include_str!("../../../docs/webhooks.md"));
    assert_eq!(examples.len(), 1);
    let printed = run(&python(), &["-"], &examples[0].code);
    assert_eq!(masked(&printed), masked(&examples[0].printed), "printed\n{printed}");
}
