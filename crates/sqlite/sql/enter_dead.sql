INSERT INTO posthouse_dead (
    seq, state, reason, ended_at, lane, key, pos, blocks, bytes, attempts, max_attempts, epoch, generation, deduped
)
VALUES (?1, ?2, ?3, ?4, ?5, CAST(?6 AS TEXT), ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14);
