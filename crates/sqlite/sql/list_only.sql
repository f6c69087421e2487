-- In a walk over all messages: only as far as ?11, and only those that the filter may take by what is in their own record.
AND c.seq {within} ?11
AND (?4 IS NULL OR c.topic = ?4)
AND (?5 IS NULL OR c.order_key = ?5)
AND (
    (?2 IS NULL AND ?3 IS NULL)
    OR c.lane IN (SELECT lane FROM posthouse_lane WHERE (?2 IS NULL OR namespace = ?2) AND (?3 IS NULL OR tenant = ?3))
)
