-- The receipt of an earlier delivery of the same content, if its worker asked to keep it: what may be reused instead of
-- sending again. Empty where the destination had returned nothing; NULL where there is no such delivery.
CREATE OR REPLACE FUNCTION posthouse.check_dedup(tenant text, namespace text, topic text, digest bytea, destination text DEFAULT '') RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF tenant IS NULL OR namespace IS NULL OR topic IS NULL OR digest IS NULL OR destination IS NULL THEN
        RAISE '%: must not be NULL', CASE WHEN tenant IS NULL THEN 'tenant' WHEN namespace IS NULL THEN 'namespace' WHEN topic IS NULL THEN 'topic'
                                          WHEN digest IS NULL THEN 'digest' ELSE 'destination' END
            USING ERRCODE = 'P7006';
    END IF;
    RETURN (SELECT coalesce(r.receipt, '') FROM receipt r WHERE r.effect = effect_hash(tenant, namespace, topic, digest, destination) ORDER BY r.seq LIMIT 1);
END $$;

-- What a delivery does, as an identity: `Effect` of the library.
CREATE OR REPLACE FUNCTION posthouse.effect_hash(tenant text, namespace text, topic text, digest bytea, destination text) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN sha256(posthouse.prefixed(convert_to(tenant, 'UTF8')) || posthouse.prefixed(convert_to(namespace, 'UTF8'))
               || posthouse.prefixed(convert_to(topic, 'UTF8')) || posthouse.prefixed(digest) || posthouse.prefixed(convert_to(destination, 'UTF8')));

-- The receipts that stand for these effects: by their places in the list, for those that have one.
CREATE OR REPLACE FUNCTION posthouse.earlier_receipts(p_effect bytea[], OUT o bigint, OUT receipt text) RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT u.o, r.receipt FROM unnest(p_effect) WITH ORDINALITY u(effect, o)
    CROSS JOIN LATERAL (SELECT r.receipt FROM receipt r WHERE r.effect = u.effect ORDER BY r.seq LIMIT 1) r;
END $$;
