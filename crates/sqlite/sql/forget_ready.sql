-- Two forms of this, because a subquery in the condition keeps SQLite from deleting as it goes.
DELETE FROM posthouse_ready WHERE lane = ?1 AND pos BETWEEN ?2 AND ?3;
