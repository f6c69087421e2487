#!/usr/bin/python3
"""A payment worker on the SQL contract, with psycopg 3:  worker.py URL NAME RUN [once] [hold | die]

once: ends when nothing is due. Else it ends when nothing is left.
hold: takes one payment, sends it, and waits for a line on its input before it reports.
die:  takes one payment, and is gone.
"""

import json
import os
import signal
import sys
import time

import psycopg

url, name, run, *options = sys.argv[1:]
LEASE = float(os.environ.get("LEASE_SECONDS", "30"))
BATCH = 1 if {"hold", "die"} & set(options) else 2


def say(text):
    print(f"{name:9} {text}", flush=True)


def send(db, message, payment):
    """Outside of any transaction of ours: the rail is not in our database, even if this one is only played."""
    answer, receipt = db.execute(
        "SELECT * FROM payment_dispatch.rail(%s, %s, %s, %s)",
        [payment["reference"], payment["account"], payment["amount"], name]).fetchone()
    match answer:
        case "booked" | "booked before":
            return answer, {"outcome": "delivered", "receipt": receipt, "error": None, "code": None}
        case "busy":
            return answer, {"outcome": "retry", "receipt": None, "error": "the rail is busy", "code": "RAIL_BUSY"}
        case _:
            return answer, {"outcome": "rejected", "receipt": None, "error": "the account is closed", "code": "RAIL_REFUSED"}


def report(db, message, payment, outcome):
    """The end of the attempt and our own change, in one transaction. Whoever lost the lease changes neither."""
    with db.transaction():
        state = db.execute(
            "SELECT posthouse.complete_outbox_attempt(%s, %s, %s, %s, error => %s, receipt => %s, code => %s)",
            [message.id, message.lease_token, name, outcome["outcome"], outcome["error"], outcome["receipt"], outcome["code"]]).fetchone()[0]
        if state != "pending":
            db.execute(
                "UPDATE payment_dispatch.payment SET state = %s, receipt = %s WHERE reference = %s",
                ["booked" if state == "done" else "refused", outcome["receipt"], payment["reference"]])
    return state


def handle(db, message):
    """Answers whether the later ones of its account may be sent."""
    payment = json.loads(message.payload)
    answer, outcome = send(db, message, payment)
    if "hold" in options:
        say(f"{payment['reference']} {payment['account']:8} {answer}, and it freezes")
        sys.stdin.readline()
    try:
        state = report(db, message, payment, outcome)
    except psycopg.DatabaseError as e:
        if e.sqlstate != "P7002":
            raise
        say(f"{payment['reference']} {payment['account']:8} {e.sqlstate}: {e.diag.message_primary}")
        db.execute("SELECT posthouse.record_conflict(%s, %s, %s, %s)", [message.id, message.lease_token, name, message.epoch])
        return False
    say(f"{payment['reference']} {payment['account']:8} attempt {message.attempt}: {answer} -> {state}")
    return state != "pending"


with psycopg.connect(url, autocommit=True) as db:
    while True:
        with db.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
            batch = cursor.execute(
                "SELECT * FROM posthouse.claim_outbox_batch(%s, %s, %s, namespaces => '{payment_dispatch}', tenant => %s)",
                [BATCH, name, LEASE, run]).fetchall()
        if "die" in options:
            say("takes one, and dies")
            os.kill(os.getpid(), signal.SIGKILL)
        waiting = set()
        for message in batch:
            # When one goes back, the later ones of its account went back with it: sending them would break their order.
            if message.order_key not in waiting and not handle(db, message):
                waiting.add(message.order_key)
        if "hold" in options or not batch and "once" in options:
            break
        if not batch:
            left = db.execute("SELECT count(*) FROM posthouse.backlog WHERE namespace = 'payment_dispatch' AND tenant = %s", [run]).fetchone()[0]
            if left == 0:
                break
            time.sleep(0.1)
