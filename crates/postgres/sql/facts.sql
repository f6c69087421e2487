-- What bears on one message besides its view.
SELECT posthouse.ahead_of(m.id) AS ahead, coalesce(d.blocking, false) AS blocks, EXISTS (SELECT FROM posthouse.resolved r WHERE r.seq = m.seq) AS resolved,
       posthouse.clock() AS now
FROM posthouse.message m LEFT JOIN posthouse.dead d ON d.seq = m.seq
WHERE m.id = $1
