-- The receipt of an earlier delivery of the same content, if its worker asked to keep it: what may be reused instead of
-- sending again.
CREATE OR REPLACE FUNCTION posthouse.check_dedup(tenant text, namespace text, topic text, digest bytea) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
BEGIN
    IF tenant IS NULL OR namespace IS NULL OR topic IS NULL OR digest IS NULL THEN
        RAISE '%: must not be NULL', CASE WHEN tenant IS NULL THEN 'tenant' WHEN namespace IS NULL THEN 'namespace' WHEN topic IS NULL THEN 'topic' ELSE 'digest' END
            USING ERRCODE = 'P7006';
    END IF;
    RETURN (SELECT r.receipt FROM receipt r WHERE r.content = content_hash(tenant, namespace, topic, digest));
END $$;

CREATE OR REPLACE FUNCTION posthouse.content_hash(tenant text, namespace text, topic text, digest bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN sha256(posthouse.prefixed(convert_to(tenant, 'UTF8')) || posthouse.prefixed(convert_to(namespace, 'UTF8'))
               || posthouse.prefixed(convert_to(topic, 'UTF8')) || posthouse.prefixed(digest));

-- Keeps the receipt of a delivered message for its twins in content. The first one stands.
CREATE OR REPLACE FUNCTION posthouse.keep_receipt(p_seq bigint, p_receipt text) RETURNS void
LANGUAGE sql SET search_path = posthouse, pg_temp AS $$
    INSERT INTO receipt (content, seq, receipt)
    SELECT content_hash(m.tenant, m.namespace, m.topic, m.digest), m.seq, p_receipt FROM message m WHERE m.seq = p_seq
    ON CONFLICT (content) DO NOTHING
$$;
