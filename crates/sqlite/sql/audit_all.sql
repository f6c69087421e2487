SELECT at, actor, action, id, detail FROM posthouse_audit ORDER BY n DESC LIMIT ?1;
