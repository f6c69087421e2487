-- Numbers as ranges. What is no number of a message is left out: a range from NULL to NULL would be everything, and there is no number
-- after the largest.
CREATE OR REPLACE FUNCTION posthouse.ranges(p_seq bigint[]) RETURNS int8multirange
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (SELECT coalesce(range_agg(int8range(s, s + 1)), '{}') FROM unnest(p_seq) s WHERE s < 9223372036854775807);

-- The numbers in ranges.
CREATE OR REPLACE FUNCTION posthouse.numbers(p_seqs int8multirange) RETURNS SETOF bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT s FROM unnest(p_seqs) r CROSS JOIN LATERAL generate_series(lower(r), upper(r) - 1) s;
END;
