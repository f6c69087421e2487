# Private PgBouncers in front of a private PostgreSQL. Source this file after postgres.sh.
#
#   start_pgbouncer FOLDER [transaction|session]
#                        starts one for the server at PG_URL (default: transaction mode) and sets BOUNCER_PID, BOUNCER_URL and
#                        BOUNCER_PORT; while BOUNCER_PORT is set, the next one listens there
#   stop_pgbouncer       stops the one with BOUNCER_PID

start_pgbouncer() {
    local mode=${2:-transaction} folder program port reset='' as=()
    folder=$1/pgbouncer-$mode
    # A session keeps its cached plans for the next client; everything else that the client set is reset.
    [ "$mode" = transaction ] || reset='server_reset_query = SET SESSION AUTHORIZATION DEFAULT; RESET ALL; DEALLOCATE ALL; CLOSE ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); DISCARD SEQUENCES; DISCARD TEMP'
    [ "$(id -u)" -ne 0 ] || as=(setpriv --reuid postgres --regid postgres --init-groups)
    program=$(PATH=$PATH:/usr/sbin command -v pgbouncer) || { echo "PgBouncer is not installed: run ./test.sh once, or 'apt-get install pgbouncer' as root" >&2; return 1; }
    port=${PG_URL##*:} port=${port%%/*}
    [ -d "$folder" ] || mkdir "$folder"
    [ "$(id -u)" -ne 0 ] || chown postgres "$folder"
    BOUNCER_PORT=${BOUNCER_PORT:-$(free_port)}
    cat >"$folder/pgbouncer.ini" <<END
[databases]
* = host=127.0.0.1 port=$port user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $BOUNCER_PORT
unix_socket_dir =
auth_type = any
pool_mode = $mode
$reset
max_client_conn = 2000
default_pool_size = 120
server_idle_timeout = 20
logfile = $folder/log
END
    (cd "$folder" && exec "${as[@]}" "$program" -q "$folder/pgbouncer.ini") >"$folder/out" 2>&1 &
    BOUNCER_PID=$!
    BOUNCER_URL="postgres://postgres@127.0.0.1:$BOUNCER_PORT/postgres"
    for _ in $(seq 100); do
        if "$PG_BIN/psql" -Atqc 'SELECT 1' "$BOUNCER_URL" >/dev/null 2>&1; then return 0; fi
        kill -0 "$BOUNCER_PID" 2>/dev/null || break
        sleep 0.1
    done
    cat "$folder/out" "$folder/log" >&2
    return 1
}

stop_pgbouncer() {
    [ -n "${BOUNCER_PID:-}" ] || return 0
    kill -TERM "$BOUNCER_PID" 2>/dev/null || true
    for _ in $(seq 100); do kill -0 "$BOUNCER_PID" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$BOUNCER_PID" 2>/dev/null || true
    BOUNCER_PID=
}
