-- The lane of a namespace and tenant: the namespace's hash above, the tenant's below, so that a namespace is a range.
-- Two tenants may share a lane; whoever filters by name checks the name.
CREATE OR REPLACE FUNCTION posthouse.lane(namespace text, tenant text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (hashtextextended(namespace, 0) << 32) | (hashtextextended(tenant, 0) & 4294967295);

-- The lower half of a tenant's lanes.
CREATE OR REPLACE FUNCTION posthouse.tenant_half(tenant text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN hashtextextended(tenant, 0) & 4294967295;

-- The hash of an order key, with its namespace and tenant in it: lanes may be shared, keys must not be.
CREATE OR REPLACE FUNCTION posthouse.key_hash(namespace text, tenant text, key text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN hashtextextended(namespace || E'\x1f' || tenant || E'\x1f' || key, 0);

-- The advisory lock of an order key for claims and operators. Producers take turns by another one.
CREATE OR REPLACE FUNCTION posthouse.key_lock(key_hash bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = posthouse, pg_temp AS $$
    SELECT key_hash # hashtextextended(current_schema(), 1)
$$;

-- A field with its length in front, so that fields do not run together under a hash.
CREATE OR REPLACE FUNCTION posthouse.prefixed(field bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN int8send(octet_length(field)) || field;

CREATE OR REPLACE FUNCTION posthouse.digest(content_type text, payload bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN sha256(posthouse.prefixed(convert_to(content_type, 'UTF8')) || posthouse.prefixed(payload));

CREATE OR REPLACE FUNCTION posthouse.dedupe_hash(namespace text, tenant text, topic text, key text) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN sha256(posthouse.prefixed(convert_to(namespace, 'UTF8')) || posthouse.prefixed(convert_to(tenant, 'UTF8'))
               || posthouse.prefixed(convert_to(topic, 'UTF8')) || posthouse.prefixed(convert_to(key, 'UTF8')));
