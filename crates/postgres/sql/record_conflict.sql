-- Writes into the audit what a worker that lost its lease found in its place, and answers it. A lease that holds the message still
-- is no conflict: nothing is recorded, and the answer says so.
CREATE OR REPLACE FUNCTION posthouse.record_conflict(
    id uuid, lease_token uuid, worker_id text, lost_epoch bigint DEFAULT NULL,
    OUT state text, OUT worker text, OUT epoch bigint, OUT recorded boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM check_lease(record_conflict.id, lease_token, worker_id);
    SELECT v.state, v.worker, v.epoch, NOT EXISTS (SELECT FROM leased l WHERE l.seq = v.seq AND l.token = lease_token AND l.until > (SELECT clock()))
        AND NOT EXISTS (SELECT FROM lot l WHERE l.token = lease_token AND l.seqs @> v.seq AND l.until > (SELECT clock()))
    INTO record_conflict.state, record_conflict.worker, record_conflict.epoch, record_conflict.recorded
    FROM messages v WHERE v.id = record_conflict.id;
    IF NOT FOUND THEN
        RAISE 'there is no message %', record_conflict.id USING ERRCODE = 'P7005';
    END IF;
    IF NOT record_conflict.recorded THEN RETURN; END IF;
    INSERT INTO audit (at, message_id, actor, action, note)
    VALUES (clock(), record_conflict.id, clean(worker_id, 512), 'outbox_flush_conflict',
            format('lease%s lost; found %s%s at epoch %s', ' of epoch ' || lost_epoch, record_conflict.state, ' by ' || record_conflict.worker, record_conflict.epoch));
END $$;
