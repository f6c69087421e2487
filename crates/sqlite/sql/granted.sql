-- What is sent of those that were granted, by a range of numbers that holds nothing else.
-- The live row of a step of a saga has no deliver-by, so that of the message is read.
SELECT
    seq, id, on_dead, topic, order_key, content_type, headers, kind, parent, destination, payload,
    CASE WHEN kind = 'step' THEN deliver_by END
FROM posthouse_message
WHERE seq BETWEEN ?1 AND ?2
ORDER BY seq;
