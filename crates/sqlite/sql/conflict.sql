SELECT
    v.state, v.worker, v.epoch,
    NOT EXISTS (
        SELECT 1 FROM posthouse_leased AS l
        WHERE l.seq = v.seq AND l.token = ?2 AND l.deadline > (SELECT now FROM posthouse_clock)
    )
FROM posthouse_messages AS v
WHERE v.raw_id = ?1;
