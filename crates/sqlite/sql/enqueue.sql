-- The message was checked in Rust, so it goes past the trigger that checks; those that write it are the same for all.
-- OR ROLLBACK, because a statement that can only end the transaction needs no journal of its own; for the same reason the
-- time is a parameter. Nothing that is written here can be refused by a constraint.
INSERT OR ROLLBACK INTO posthouse_accepted (
    id, now, topic, payload, bytes, content_type, tenant, namespace, headers, deliver_in, max_attempts, on_dead, digest,
    kind, parent, destination, order_key, dedupe_key, delay, dedupe_for
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20);
