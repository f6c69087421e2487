-- Where the version is kept.
CREATE TABLE IF NOT EXISTS posthouse.schema_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version int NOT NULL,
    oldest  int NOT NULL
);
-- How each function, view and trigger was made: the hash of the statement, and of the object as the catalogue showed it then.
CREATE TABLE IF NOT EXISTS posthouse.applied (
    name   text PRIMARY KEY,
    source bytea NOT NULL,
    shown  bytea NOT NULL
)
