-- Looked at again when it is due, or when it lapses if that is first.
INSERT INTO posthouse_sched (
    lane, wake_at, seq, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped, due_at,
    changed_at, released_by
)
VALUES (?1, min(?12, coalesce(?10, ?12)), ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14);
