-- What is sent of those that were granted, by a range of numbers that holds nothing else.
SELECT seq, id, on_dead, topic, order_key, content_type, headers, kind, parent, destination, payload
FROM posthouse_message
WHERE seq BETWEEN ?1 AND ?2
ORDER BY seq;
