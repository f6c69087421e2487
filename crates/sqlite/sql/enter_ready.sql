INSERT INTO posthouse_ready (
    lane, pos, seq, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped, due_at, changed_at,
    released_by
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14);
