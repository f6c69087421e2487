-- The service's own tables. The same text on PostgreSQL and on SQLite.
CREATE TABLE IF NOT EXISTS minichat_policy (
    version bigint PRIMARY KEY,
    model text NOT NULL,
    max_output_tokens bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS minichat_turns (
    tenant_id text NOT NULL,
    turn_id text NOT NULL,
    request_id text NOT NULL,
    user_id text,
    state text NOT NULL DEFAULT 'running',
    policy_version bigint NOT NULL,
    effective_model text NOT NULL,
    max_output_tokens bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    streamed_bytes bigint NOT NULL DEFAULT 0,
    provider_response_id text,
    reported_input bigint,
    reported_output bigint,
    PRIMARY KEY (tenant_id, turn_id, request_id)
);
CREATE TABLE IF NOT EXISTS minichat_quota (
    tenant_id text NOT NULL,
    user_id text NOT NULL,
    spent_tokens bigint NOT NULL,
    PRIMARY KEY (tenant_id, user_id)
);
-- The billing system's. It is here only because a story has one database.
CREATE TABLE IF NOT EXISTS minichat_bills (
    usage_key text PRIMARY KEY,
    tenant_id text NOT NULL,
    tokens bigint NOT NULL
);
