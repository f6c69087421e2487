-- The roles of this schema, and what each needs: functions to execute, tables and views to read.
CREATE OR REPLACE FUNCTION posthouse.role_rights() RETURNS TABLE (suffix text, functions text[], tables text[])
LANGUAGE sql STABLE SET search_path = posthouse, pg_temp AS $$
    SELECT r.* FROM (VALUES
        ('owner', '{}'::text[], '{}'::text[]),
        ('producer', '{enqueue,enqueue_bytes,enqueue_batch,enqueue_many,ledger_begin,conclude_in,renew_entry,reach_in,once_in,leave_in,ledger_finish,ledger_fail,ledger_renew,ledger_checkpoint,ledger_leave,inbox_once,step_once,inbox_do_once,inbox_undo_once,saga_start}', '{schema_version}'),
        ('relay', '{claim_outbox_batch,complete_outbox_attempt,renew_lease,repair_expired_leases,record_conflict,check_dedup,earlier_receipts,
                    grant_leases,settle,settle_delivered,settle_expired,fates,renew,expired,enqueue_many,enqueue_follow_ups,sample_floor,below_floors,fall_asleep,heartbeat,leave,pause_destination,prune,counts,ledger_begin,conclude_in,renew_entry,reach_in,once_in,leave_in,ledger_clear,settle_bound,ledger_finish,ledger_fail,ledger_renew,ledger_checkpoint,ledger_leave,inbox_once,step_once,inbox_do_once,inbox_undo_once,saga_start,saga_load,saga_settle,saga_change}',
                  '{schema_version}'),
        ('operator', '{replay,quarantine,cancel,resolve,discard,prune,repair_expired_leases,expired,settle_expired,
                       pause_destination,resume_destination,find_messages,find_entries,counts,bearing,clock,saga_load,saga_change}',
                     '{schema_version,messages,backlog,attempts,audit,relay,pause,entries,sagas,saga_history}'),
        ('viewer', '{counts}', '{masked_messages,masked_attempts}')) r
$$;

-- Makes the roles of this schema, named after it, and grants them what they need and nothing else. Run it again after an upgrade.
-- The functions work with the owner's rights, so nobody but the owner has a right on a table; the owner cannot log in.
CREATE OR REPLACE FUNCTION posthouse.make_roles() RETURNS SETOF text
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    s CONSTANT text := current_schema();
    x record;
BEGIN
    -- One at a time, and none beside a migration.
    PERFORM pg_advisory_xact_lock(7260, 1);
    FOR x IN SELECT s || '_' || r.suffix AS name, r.* FROM posthouse.role_rights() r
    LOOP
        IF NOT EXISTS (SELECT FROM pg_roles p WHERE p.rolname = x.name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', x.name);
        END IF;
        IF x.suffix <> 'owner' THEN
            EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', s, x.name);
            EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM %I', s, x.name);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', s, x.name);
        IF x.functions <> '{}' THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', (SELECT string_agg(format('%I.%I', s, f), ', ') FROM unnest(x.functions) f), x.name);
        END IF;
        IF x.tables <> '{}' THEN
            EXECUTE format('GRANT SELECT ON %s TO %I', (SELECT string_agg(format('%I.%I', s, t), ', ') FROM unnest(x.tables) t), x.name);
        END IF;
        RETURN NEXT x.name;
    END LOOP;
    -- Everything belongs to the owner from now on; whoever migrates next must be a member of it.
    IF NOT pg_has_role(current_user, s || '_owner', 'USAGE') THEN
        EXECUTE format('GRANT %I TO %I', s || '_owner', current_user);
    END IF;
    EXECUTE format('ALTER SCHEMA %I OWNER TO %I', s, s || '_owner');
    FOR x IN
        SELECT format('ALTER %s %I.%I OWNER TO %I', CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, s, c.relname, s || '_owner') AS command
        FROM pg_class c WHERE c.relnamespace = s::regnamespace AND c.relkind IN ('r', 'v')
        UNION ALL
        SELECT format('ALTER FUNCTION %s OWNER TO %I', p.oid::regprocedure, s || '_owner') FROM pg_proc p WHERE p.pronamespace = s::regnamespace
        UNION ALL
        SELECT format('ALTER TYPE %I.%I OWNER TO %I', s, t.typname, s || '_owner') FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid AND c.relkind = 'c' WHERE t.typnamespace = s::regnamespace
    LOOP
        EXECUTE x.command;
    END LOOP;
END $$;

-- What viewers read: no keys, no receipts, no notes; a key's hash tells whether two are the same. With a salt that they cannot read, and no
-- function of its own that they could call: nobody confirms a guess.
CREATE OR REPLACE VIEW posthouse.masked_messages AS
    SELECT v.id, v.seq, v.tenant, v.namespace, v.topic, left(encode(sha256(s.salt || convert_to(v.order_key, 'UTF8')), 'hex'), 16) AS order_key,
           left(encode(sha256(s.salt || convert_to(v.dedupe_key, 'UTF8')), 'hex'), 16) AS dedupe_key, v.state, v.reason, v.attempts,
           v.epoch, v.generation, v.worker, v.lease_until, v.due_at, v.created_at, v.updated_at, v.finished_at, v.last_code, v.max_attempts, v.deliver_by, v.bytes, v.kind, v.parent, v.destination
    FROM posthouse.messages v CROSS JOIN posthouse.secret s;

CREATE OR REPLACE VIEW posthouse.masked_attempts AS
    SELECT a.message_id, a.epoch, a.generation, a.attempt, a.worker, a.outcome, a.code, a.started_at, a.finished_at, a.duration FROM posthouse.attempts a;
