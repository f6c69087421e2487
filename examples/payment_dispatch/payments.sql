-- What the payment service has of its own, and a bank that it does not control.
CREATE SCHEMA payment_dispatch;

CREATE TABLE payment_dispatch.payment (
    n         bigint GENERATED ALWAYS AS IDENTITY,
    reference text PRIMARY KEY,
    account   text NOT NULL,
    amount    int NOT NULL CHECK (amount > 0),
    state     text NOT NULL DEFAULT 'accepted',
    receipt   text
);

-- Accepts a payment, in the caller's transaction: the payment and the message that tells of it are committed together, or neither is.
-- Payments of one account go one after the other; a reference is paid once.
CREATE FUNCTION payment_dispatch.pay(run text, reference text, account text, amount int) RETURNS uuid
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    INSERT INTO payment_dispatch.payment (reference, account, amount) VALUES (reference, account, amount) ON CONFLICT DO NOTHING;
    RETURN posthouse.enqueue(
        'rail.transfer', jsonb_build_object('reference', reference, 'account', account, 'amount', amount),
        namespace => 'payment_dispatch', tenant => run, order_key => account, dedupe_key => reference);
END $$;

-- The rail. It books a reference once, however often it is told; it is busy the first time it hears of an amount that ends in 5 or 0;
-- and it refuses accounts that are closed.
CREATE TABLE payment_dispatch.booking (
    n         bigint GENERATED ALWAYS AS IDENTITY,
    reference text PRIMARY KEY,
    account   text NOT NULL,
    receipt   text NOT NULL
);
CREATE TABLE payment_dispatch.call (
    n         bigint GENERATED ALWAYS AS IDENTITY,
    reference text NOT NULL,
    worker    text NOT NULL,
    answer    text NOT NULL
);
CREATE FUNCTION payment_dispatch.rail(reference text, account text, amount int, worker text, OUT answer text, OUT receipt text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    PERFORM pg_sleep(0.1);
    IF account LIKE 'closed%' THEN
        answer := 'refused';
    ELSIF amount % 5 = 0 AND NOT EXISTS (SELECT FROM payment_dispatch.call c WHERE c.reference = rail.reference) THEN
        answer := 'busy';
    ELSE
        INSERT INTO payment_dispatch.booking (reference, account, receipt) VALUES (reference, account, 'bank-' || upper(left(md5(reference), 6))) ON CONFLICT DO NOTHING;
        SELECT CASE WHEN FOUND THEN 'booked' ELSE 'booked before' END, b.receipt INTO answer, receipt FROM payment_dispatch.booking b WHERE b.reference = rail.reference;
    END IF;
    INSERT INTO payment_dispatch.call (reference, worker, answer) VALUES (reference, worker, answer);
END $$;

-- Everything that a worker could change, but for the audit, in one value.
CREATE FUNCTION payment_dispatch.fingerprint() RETURNS text
LANGUAGE sql AS $$
    SELECT md5(concat(
        (SELECT string_agg(x::text, ',' ORDER BY x.id) FROM posthouse.messages x), (SELECT string_agg(x::text, ',' ORDER BY x.message_id, x.epoch) FROM posthouse.attempts x),
        (SELECT string_agg(x::text, ',' ORDER BY x.seq) FROM posthouse.leased x), (SELECT string_agg(x::text, ',' ORDER BY x.n) FROM payment_dispatch.payment x),
        (SELECT string_agg(x::text, ',' ORDER BY x.n) FROM payment_dispatch.booking x)))
$$;
