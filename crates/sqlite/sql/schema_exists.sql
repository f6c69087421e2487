-- Asked of the database itself: what the connection remembers of the schema may be older than the write lock.
SELECT count(*) FROM sqlite_schema WHERE name = 'posthouse_schema';
