-- The message was checked in Rust, so it goes past the trigger that checks; the ones that write it are the same for all.
-- OR ROLLBACK, because a statement that can only end the transaction needs no journal of its own. It never does: nothing
-- that is written here can be refused by a constraint.
INSERT OR ROLLBACK INTO posthouse_accepted (
    topic, payload, content_type, tenant, namespace, order_key, dedupe_key, headers, delay, deliver_in, id,
    on_duplicate, max_attempts, on_dead, dedupe_for, digest, kind, parent, destination, now
)
VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,
    (SELECT now FROM posthouse_clock)
);
