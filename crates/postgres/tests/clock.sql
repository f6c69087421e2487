-- The store's clock for tests: it stands still until it is moved.
CREATE TABLE posthouse.test_clock (at timestamptz NOT NULL, claims_take interval NOT NULL DEFAULT '0');
INSERT INTO posthouse.test_clock VALUES ('2030-01-01 00:00:00+00');
CREATE OR REPLACE FUNCTION posthouse.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM posthouse.test_clock';
-- What an application beside the outbox writes.
CREATE TABLE posthouse.test_note (n bigint GENERATED ALWAYS AS IDENTITY, line text NOT NULL);
