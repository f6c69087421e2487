-- Changes nothing, and takes the write lock, so that the clock is read and the lease is judged under it.
UPDATE posthouse_leased SET deadline = deadline WHERE seq = ?1 AND token = ?2;
