-- Not yet a head: free_head decides that when the key is at rest.
INSERT INTO posthouse_keyed (
    lane, pos, seq, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped, due_at, changed_at,
    released_by, key
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, CAST(?15 AS TEXT));
