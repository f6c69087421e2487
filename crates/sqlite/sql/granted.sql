-- What was granted, in the order it was chosen. CROSS JOIN keeps that order.
SELECT
    l.seq, l.lane, l.attempts, l.max_attempts, l.epoch, l.generation, l.releases, l.deliver_by,
    m.id, m.on_dead, m.topic, m.order_key, m.content_type, m.headers, m.kind, m.parent, m.destination, m.payload
FROM json_each(?1) AS j
CROSS JOIN posthouse_leased AS l ON l.seq = j.value
CROSS JOIN posthouse_message AS m ON m.seq = l.seq;
