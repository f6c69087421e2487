DELETE FROM posthouse_sched WHERE seq = ?1;
