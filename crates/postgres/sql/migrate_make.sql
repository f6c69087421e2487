-- Where the version is kept.
CREATE TABLE IF NOT EXISTS posthouse.schema_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version int NOT NULL,
    oldest  int NOT NULL
)
