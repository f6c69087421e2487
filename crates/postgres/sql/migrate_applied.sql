-- How objects were made, and how the catalogue shows them.
INSERT INTO posthouse.applied (name, source, shown)
SELECT u.name, u.source, u.shown FROM unnest($1, $2, $3) u (name, source, shown)
ON CONFLICT (name) DO UPDATE SET source = excluded.source, shown = excluded.shown
