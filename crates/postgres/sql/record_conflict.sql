-- Writes into the audit what a worker that lost its lease found in its place, and answers it.
CREATE OR REPLACE FUNCTION posthouse.record_conflict(
    id uuid, lease_token uuid, worker_id text, lost_epoch bigint DEFAULT NULL,
    OUT state text, OUT worker text, OUT epoch bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = posthouse, pg_temp AS $$
#variable_conflict use_column
BEGIN
    SELECT v.state, v.worker, v.epoch INTO record_conflict.state, record_conflict.worker, record_conflict.epoch
    FROM messages v WHERE v.id = record_conflict.id;
    IF NOT FOUND THEN
        RAISE 'there is no message %', record_conflict.id USING ERRCODE = 'P7005';
    END IF;
    INSERT INTO audit (at, message_id, actor, action, detail)
    VALUES (clock(), record_conflict.id, clean(worker_id, 255), 'outbox_flush_conflict',
            format('lease%s lost; found %s%s at epoch %s', ' of epoch ' || lost_epoch, record_conflict.state, ' by ' || record_conflict.worker, record_conflict.epoch));
END $$;
