//! Runs the page for operators: its commands are typed in order, in one story, and print what the page says.

use posthouse::{
    Breaker, Health, Outcome, Route,
    presence::{Delivered, Deliveries, Relay},
};
use posthouse_testkit::page::{examples, masked};

use crate::story::Story;

/// The night of the page.
fn night() -> Story {
    let story = Story::new();
    for n in 1..=3 {
        story.enqueue(n, "invoice.sent --tenant acme");
    }
    story.at(1);
    let fails = |code: &str, error: &str| (code.to_owned(), error.to_owned());
    let (code, error) = fails("http_503", "Service Unavailable");
    let after = None;
    story.send("relay-a", &Outcome::Retry { code, error, after });
    story.enqueue(4, "order.placed --key order-42 --on-dead block");
    let (code, error) = fails("http_422", "no such customer");
    story.send("relay-a", &Outcome::Reject { code, error });
    story.enqueue(5, "order.placed --key order-42");
    story.at(2);
    story.enqueue(6, "stock.changed");
    story.claim("worker-7", 1);
    story.at(7200);
    let route = |topic: &str, destination: &str| Route {
        topic: topic.to_owned(),
        destinations: vec![destination.to_owned()],
        ..Route::default()
    };
    let health = |destination: &str| Health {
        destination: destination.to_owned(),
        breaker: Breaker::Closed,
        limited: false,
    };
    let delivered = |destination: &str, per_minute| Delivered {
        destination: destination.to_owned(),
        delivered: 2500,
        per_minute,
    };
    story.heartbeat(Relay {
        name: "relay-a".to_owned(),
        routes: vec![route("invoice.*", "billing"), route("*", "shop")],
        destinations: vec![health("billing"), health("shop")],
        deliveries: Deliveries {
            delivered: 5000,
            per_minute: 80,
            destinations: vec![delivered("shop", 60), delivered("billing", 20)],
            more: false,
        },
        ..Relay::default()
    });
    story
}

#[test]
fn the_page_for_operators_prints_what_it_says() {
    let page = include_str!("../../../docs/operating.md");
    let examples = examples(page);
    assert_eq!(page.matches("\n```sh\n").count(), examples.len());
    let story = night();
    for example in examples {
        let mut printed = String::new();
        for line in example.code.lines() {
            let (stdout, stderr, code) = story.run(line);
            assert_eq!(code, 0, "{line}\n{stderr}");
            printed += &format!("{stdout}{stderr}");
        }
        assert_eq!(
            masked(&printed),
            masked(&example.printed),
            "{}printed\n{printed}",
            example.code
        );
    }
}

/// Every command that the page names is one that there is.
#[test]
fn the_page_for_operators_names_commands_that_there_are() {
    let page = include_str!("../../../docs/operating.md");
    let story = Story::before();
    let words = page
        .split(['`', '\n'])
        .filter_map(|part| part.strip_prefix("posthouse "));
    let mut seen = 0;
    for words in words {
        let command: Vec<_> = words
            .split_whitespace()
            .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase()))
            .take(2)
            .collect();
        let (_, stderr, code) = story.run(&format!("posthouse {} --help", command.join(" ")));
        assert_eq!(code, 0, "{words}\n{stderr}");
        seen += 1;
    }
    assert!(seen > 15, "{seen}");
}
