INSERT INTO posthouse_resolved (seq, ended_at, attempts, max_attempts, epoch, generation)
VALUES (?1, ?2, ?3, ?4, ?5, ?6);
