#!/usr/bin/env bash
# A payment worker on the SQL contract, with nothing but psql:  worker.sh URL NAME RUN [once]
#
# once: ends when nothing is due. Else it ends when nothing is left. Values go in as variables of psql, which quotes them.
set -euo pipefail
url=$1 name=$2 run=$3 once=${4:-}

sql() { "${PSQL:-psql}" -XqAt -F ' ' -v ON_ERROR_STOP=1 -v VERBOSITY=sqlstate -v name="$name" -v run="$run" "$@" -d "$url"; }
say() { printf '%-9s %s\n' "$name" "$*"; }

claim() {
    sql <<'SQL'
SELECT c.id, c.lease_token, c.epoch, c.attempt, p.reference, p.account, p.amount
FROM posthouse.claim_outbox_batch(2, :'name', 30, namespaces => '{payment_dispatch}', tenant => :'run') c
CROSS JOIN LATERAL jsonb_to_record(convert_from(c.payload, 'UTF8')::jsonb) p(reference text, account text, amount int);
SQL
}

send() {
    sql -v reference="$1" -v account="$2" -v amount="$3" <<'SQL'
SELECT replace(answer, ' ', '_'), receipt FROM payment_dispatch.rail(:'reference', :'account', :'amount', :'name');
SQL
}

# The end of the attempt and our own change, in one transaction. Whoever lost the lease changes neither.
report() {
    sql -v id="$1" -v token="$2" -v outcome="$3" -v error="$4" -v receipt="$5" -v code="$6" -v reference="$7" <<'SQL'
BEGIN;
SELECT posthouse.complete_outbox_attempt(:'id', :'token', :'name', :'outcome', error => nullif(:'error', ''), receipt => nullif(:'receipt', ''), code => nullif(:'code', '')) AS state \gset
UPDATE payment_dispatch.payment SET state = CASE :'state' WHEN 'done' THEN 'booked' ELSE 'refused' END, receipt = nullif(:'receipt', '')
WHERE reference = :'reference' AND :'state' <> 'pending';
COMMIT;
\echo :state
SQL
}

conflict() {
    sql -v id="$1" -v token="$2" -v epoch="$3" <<'SQL' >/dev/null
SELECT posthouse.record_conflict(:'id', :'token', :'name', :epoch);
SQL
}

while true; do
    claimed=$(claim)
    declare -A waiting=()
    while read -r id token epoch attempt reference account amount; do
        [ -n "$id" ] || continue
        # When one goes back, the later ones of its account went back with it: sending them would break their order.
        [ -z "${waiting[$account]:-}" ] || continue
        read -r answer receipt <<<"$(send "$reference" "$account" "$amount")"
        case $answer in
            booked*) end=(delivered '' "$receipt" '') ;;
            busy) end=(retry 'the rail is busy' '' RAIL_BUSY) ;;
            *) end=(rejected 'the account is closed' '' RAIL_REFUSED) ;;
        esac
        if state=$(report "$id" "$token" "${end[@]}" "$reference" 2>&1); then
            say "$(printf '%s %-8s attempt %s: %s -> %s' "$reference" "$account" "$attempt" "${answer/_/ }" "$state")"
            [ "$state" != pending ] || waiting[$account]=yes
        elif [[ $state == *P7002* ]]; then
            say "$(printf '%s %-8s P7002: the lease is lost' "$reference" "$account")"
            conflict "$id" "$token" "$epoch"
            waiting[$account]=yes
        else
            echo "$state" >&2
            exit 1
        fi
    done <<<"$claimed"
    if [ -z "$claimed" ]; then
        [ -z "$once" ] || exit 0
        left=$(sql <<<"SELECT count(*) FROM posthouse.backlog WHERE namespace = 'payment_dispatch' AND tenant = :'run';")
        [ "$left" -gt 0 ] || exit 0
        sleep 0.1
    fi
done
