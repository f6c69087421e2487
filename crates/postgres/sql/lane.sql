-- The lane of a namespace and tenant: the namespace's hash above, the tenant's below, so that a namespace is a range.
-- Two tenants may share a lane; whoever filters by name checks the name.
CREATE OR REPLACE FUNCTION posthouse.lane(namespace text, tenant text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (hashtextextended(namespace, 0) << 32) | (hashtextextended(tenant, 0) & 4294967295)
$$;

CREATE OR REPLACE FUNCTION posthouse.key_hash(key text) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtext(key)
$$;

-- A field with its length in front, so that fields do not run together under a hash.
CREATE OR REPLACE FUNCTION posthouse.prefixed(field bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT int8send(octet_length(field)) || field
$$;

CREATE OR REPLACE FUNCTION posthouse.digest(content_type text, payload bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT sha256(posthouse.prefixed(convert_to(content_type, 'UTF8')) || posthouse.prefixed(payload))
$$;

CREATE OR REPLACE FUNCTION posthouse.dedupe_hash(namespace text, tenant text, topic text, key text) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT sha256(posthouse.prefixed(convert_to(namespace, 'UTF8')) || posthouse.prefixed(convert_to(tenant, 'UTF8'))
               || posthouse.prefixed(convert_to(topic, 'UTF8')) || posthouse.prefixed(convert_to(key, 'UTF8')))
$$;
