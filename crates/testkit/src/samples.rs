//! Messages for whoever must show that nothing is lost on the way into a store.

use posthouse_core::{
    Message, MessageId, OnDead, OnDuplicate, Order, SagaId,
    saga::{Definition, Start},
};
use std::time::Duration;
use uuid::Uuid;

/// Where in [`one_of_everything`] the message is whose every text is hard to write down.
pub const NASTY: usize = 3;

/// Text that is hard to write down.
const TEXT: &str = r#"{"a", NULL, \x00 'b' $1 ?1 \\ é 日本 "}"#;

/// A saga whose every text is hard to write down, with an identity of its own.
pub fn a_saga(input: &str) -> Start {
    let definition = r#"{ "name": "trip", "version": 1, "deadline_ms": 60000, "steps": [
        { "name": "flight", "action_uri": "fn:flight", "compensate_uri": "fn:flight/undo" } ] }"#;
    let definition = Definition::parse(definition).unwrap();
    let id = SagaId(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_1000));
    let start = Start::new(id, &definition, TEXT, &[input, TEXT]).unwrap();
    start.tenant(TEXT).namespace("other")
}

/// One of everything that a message can carry, each with an id of its own.
pub fn one_of_everything() -> Vec<Message> {
    let nasty = TEXT;
    let messages = [
        Message::json("plain", &[1]).unwrap(),
        Message::bytes("bytes", "application/octet-stream", vec![0, 1, 92, 34, 255]),
        Message::bytes("empty", "text/plain", ""),
        Message::json(nasty, nasty)
            .unwrap()
            .tenant(nasty)
            .namespace("other")
            .order_key(nasty)
            .dedupe_key(nasty)
            .header("x-nasty", nasty),
        Message::json("NULL", "NULL")
            .unwrap()
            .order_key("NULL")
            .dedupe_key("null"),
        Message {
            max_attempts: Some(3),
            on_dead: OnDead::Block,
            order: Order::Relaxed,
            on_duplicate: OnDuplicate::Keep,
            deliver_in: Some(Duration::from_secs(3600)),
            ..Message::json("settings", &7).unwrap().order_key("k").dedupe_key("d")
        },
        Message::json("later", &8).unwrap().delay(Duration::from_millis(1500)),
    ];
    let id = |n: u128| MessageId(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + n));
    let named = messages.into_iter().zip(1..);
    named.map(|(m, n)| Message { id: Some(id(n)), ..m }).collect()
}
