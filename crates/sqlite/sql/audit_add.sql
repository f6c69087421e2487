INSERT INTO posthouse_audit (at, actor, action, id, destination, note) VALUES (?1, ?2, ?3, ?4, ?5, ?6);
