UPDATE posthouse_saga
SET state = ?2, reason = ?3, paused = ?4, revision = ?5, snapshot = ?6, updated_at = ?7,
    finished_at = CASE WHEN ?8 THEN coalesce(finished_at, ?7) END
WHERE seq = ?1;
