SELECT at, actor, action, id, detail FROM posthouse_audit WHERE id = ?2 ORDER BY n DESC LIMIT ?1;
