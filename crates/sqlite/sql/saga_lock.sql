-- Changes nothing: a transaction that was begun DEFERRED has the write lock from here on.
UPDATE posthouse_saga SET revision = revision WHERE id = ?1;
