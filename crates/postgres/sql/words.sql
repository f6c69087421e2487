-- The words of the contract for the numbers in the tables.
CREATE OR REPLACE FUNCTION posthouse.outcome_word(outcome smallint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (ARRAY['delivered', 'duplicate', 'expanded', 'retry', 'rejected', 'lease_expired', 'lapsed'])[outcome];

-- Reason 0 is a quarantined message, which is not dead and has none.
CREATE OR REPLACE FUNCTION posthouse.reason_word(reason smallint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (ARRAY['exhausted', 'rejected', 'lapsed', 'conflict', 'cancelled'])[reason];

-- A kind that this version does not know is shown by its number.
CREATE OR REPLACE FUNCTION posthouse.kind_word(kind smallint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN coalesce((ARRAY['message', 'child', 'step', 'compensation', 'timer'])[kind + 1], kind::text);
