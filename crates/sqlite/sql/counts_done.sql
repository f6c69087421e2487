-- How many of the first ?1 messages are looked at, and how many of them are done. Below ?2, the first number that waits or is
-- leased, a message is done unless it is dead or scheduled. In the order of numbers, so that a new message never moves the ones that
-- are looked at; a payload is the last column, and its overflow pages are not read.
SELECT
    count(*),
    count(*) FILTER (
        WHERE NOT EXISTS (SELECT 1 FROM posthouse_dead AS d WHERE d.seq = m.seq)
        AND NOT EXISTS (SELECT 1 FROM posthouse_sched AS s WHERE s.seq = m.seq)
        AND (m.seq < ?2 OR (SELECT v.state FROM posthouse_messages AS v WHERE v.seq = m.seq) = 'done')
    )
FROM (SELECT seq FROM posthouse_message NOT INDEXED ORDER BY seq LIMIT ?1) AS m;
