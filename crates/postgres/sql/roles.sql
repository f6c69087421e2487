-- The roles of this schema, and what each needs: functions to execute, tables and views to read.
CREATE OR REPLACE FUNCTION posthouse.role_rights() RETURNS TABLE (suffix text, functions text[], tables text[])
LANGUAGE sql STABLE SET search_path = posthouse, pg_temp AS $$
    SELECT r.* FROM (VALUES
        ('owner', '{}'::text[], '{}'::text[]),
        ('producer', '{enqueue,enqueue_bytes,enqueue_batch,enqueue_many,ledger_begin,conclude_in,renew_entry,reach_in,once_in,leave_in,ledger_finish,ledger_fail,ledger_renew,ledger_checkpoint,ledger_leave,inbox_once,step_once,inbox_do_once,inbox_undo_once,saga_start}', '{schema_version}'),
        ('relay', '{claim_outbox_batch,complete_outbox_attempt,renew_lease,repair_expired_leases,record_conflict,check_dedup,earlier_receipts,
                    grant_leases,settle,settle_delivered,settle_expired,fates,renew,expired,enqueue_many,enqueue_follow_ups,sample_floor,below_floors,fall_asleep,heartbeat,leave,pause_destination,prune,prune_done,counts,ledger_begin,conclude_in,renew_entry,reach_in,once_in,leave_in,ledger_clear,settle_bound,ledger_finish,ledger_fail,ledger_renew,ledger_checkpoint,ledger_leave,inbox_once,step_once,inbox_do_once,inbox_undo_once,saga_start,saga_load,saga_settle,saga_change}',
                  '{schema_version}'),
        ('operator', '{replay,quarantine,cancel,resolve,discard,prune,prune_done,prune_states,repair_expired_leases,expired,settle_expired,
                       pause_destination,resume_destination,find_messages,find_entries,counts,bearing,clock,saga_load,saga_change}',
                     '{schema_version,messages,backlog,attempts,audit,relay,pause,entries,sagas,saga_history}'),
        ('viewer', '{counts}', '{masked_messages,masked_attempts}')) r
$$;

-- Makes the roles of this schema, named after it, and changes the rights that differ from role_rights. Gives the schema and its functions to the owner role.
-- Locks no table; owner_changes has the statements that do. Until those have run, the owner role holds every right on the tables, because the functions
-- work with its rights.
CREATE OR REPLACE FUNCTION posthouse.grant_roles() RETURNS SETOF text
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    s CONSTANT text := current_schema();
    owner CONSTANT text := s || '_owner';
    x record;
    y record;
BEGIN
    -- One at a time, and none beside a migration.
    PERFORM pg_advisory_xact_lock(7260, 1);
    FOR x IN SELECT s || '_' || r.suffix AS name, r.* FROM posthouse.role_rights() r
    LOOP
        IF NOT EXISTS (SELECT FROM pg_roles p WHERE p.rolname = x.name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', x.name);
        END IF;
        IF NOT EXISTS (SELECT FROM pg_namespace n CROSS JOIN LATERAL aclexplode(n.nspacl) a
                       WHERE n.nspname = s AND a.grantee = x.name::regrole AND a.privilege_type = 'USAGE') THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', s, x.name);
        END IF;
        CONTINUE WHEN x.suffix = 'owner';
        -- Rights that the role has and should not have.
        FOR y IN
            SELECT format('REVOKE ALL ON FUNCTION %s FROM %I', p.oid::regprocedure, x.name) AS command
            FROM pg_proc p WHERE p.pronamespace = s::regnamespace AND p.proname <> ALL (x.functions)
              AND EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = x.name::regrole)
            UNION ALL
            SELECT format('REVOKE ALL ON %I.%I FROM %I', s, c.relname, x.name)
            FROM pg_class c WHERE c.relnamespace = s::regnamespace AND c.relkind IN ('r', 'v')
              AND EXISTS (SELECT FROM aclexplode(c.relacl) a WHERE a.grantee = x.name::regrole AND (a.privilege_type <> 'SELECT' OR c.relname <> ALL (x.tables)))
        LOOP
            EXECUTE y.command;
        END LOOP;
        -- Rights that the role lacks. A name that does not exist is an error.
        FOR y IN
            SELECT format('GRANT EXECUTE ON FUNCTION %I.%I TO %I', s, f.name, x.name) AS command
            FROM unnest(x.functions) f (name)
            WHERE NOT EXISTS (SELECT FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) a
                              WHERE p.pronamespace = s::regnamespace AND p.proname = f.name AND a.grantee = x.name::regrole)
            UNION ALL
            SELECT format('GRANT SELECT ON %I.%I TO %I', s, t.name, x.name)
            FROM unnest(x.tables) t (name)
            WHERE NOT EXISTS (SELECT FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
                              WHERE c.relnamespace = s::regnamespace AND c.relname = t.name AND a.grantee = x.name::regrole AND a.privilege_type = 'SELECT')
        LOOP
            EXECUTE y.command;
        END LOOP;
    END LOOP;
    -- The owner role owns everything from now on; the next migrator must be a member of it.
    IF NOT pg_has_role(current_user, owner, 'USAGE') THEN
        EXECUTE format('GRANT %I TO %I', owner, current_user);
    END IF;
    IF EXISTS (SELECT FROM posthouse.owner_changes()) THEN
        EXECUTE format('GRANT ALL ON ALL TABLES IN SCHEMA %I TO %I', s, owner);
        EXECUTE format('GRANT ALL ON ALL SEQUENCES IN SCHEMA %I TO %I', s, owner);
    END IF;
    IF (SELECT n.nspowner <> owner::regrole FROM pg_namespace n WHERE n.nspname = s) THEN
        EXECUTE format('ALTER SCHEMA %I OWNER TO %I', s, owner);
    END IF;
    FOR y IN
        SELECT format('ALTER FUNCTION %s OWNER TO %I', p.oid::regprocedure, owner) AS command
        FROM pg_proc p WHERE p.pronamespace = s::regnamespace AND p.proowner <> owner::regrole
    LOOP
        EXECUTE y.command;
    END LOOP;
    RETURN QUERY SELECT s || '_' || r.suffix FROM posthouse.role_rights() r;
END $$;

-- The statements that give the views, types and tables of this schema to its owner, where they are another's. Each of them locks what it is about.
CREATE OR REPLACE FUNCTION posthouse.owner_changes() RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = posthouse, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT format('ALTER %s %I.%I OWNER TO %I', CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'c' THEN 'TYPE' ELSE 'TABLE' END, current_schema(), c.relname, current_schema() || '_owner')
    FROM pg_class c
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'v', 'c') AND c.relowner <> (current_schema() || '_owner')::regrole
    -- Views before what they read, as their readers lock them.
    ORDER BY c.relkind <> 'v', c.oid DESC;
END $$;

-- Makes the roles of this schema, in one transaction: run it again after an upgrade. `posthouse migrate --roles` does the same in several, one for each table.
-- The functions work with the owner's rights, so only the owner has rights on the tables; the owner cannot log in.
CREATE OR REPLACE FUNCTION posthouse.make_roles() RETURNS SETOF text
LANGUAGE plpgsql SET search_path = posthouse, pg_temp AS $$
DECLARE
    x record;
BEGIN
    RETURN QUERY SELECT r FROM posthouse.grant_roles() r;
    FOR x IN SELECT c.command FROM posthouse.owner_changes() c (command) LOOP
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
