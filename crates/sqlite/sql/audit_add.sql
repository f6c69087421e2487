INSERT INTO posthouse_audit (at, actor, action, id, destination, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6);
