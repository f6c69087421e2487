# Private PostgreSQL servers for tests and benches: own data folder, free port, loopback only. Sourced, not run.
#
#   start_postgres FOLDER fast|durable [-c SETTING=VALUE ...]
#                                        starts one in FOLDER, and sets PG_PID, PG_BIN and PG_URL
#   stop_postgres                        stops it, by process id
#   serve_postgres FOLDER fast|durable [-c SETTING=VALUE ...]
#                                        starts it again, with the data that are there
#   open_tmpdir                          makes TMPDIR a folder that the server's own user can enter

# The folder of a server's programs, newest first.
find_postgres() {
    local dir
    for dir in $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -t/ -k5 -rn); do
        if [ -x "$dir/postgres" ] && [ -x "$dir/initdb" ]; then echo "$dir"; return; fi
    done
}

# Root's own folder for temporary files may be closed to everybody else (0700); the server, which does not run as root, could not
# reach its data there. Asked as nobody, because PostgreSQL's user may not exist yet.
open_tmpdir() {
    export TMPDIR=${TMPDIR:-/tmp}
    [ "$(id -u)" -eq 0 ] || return 0
    if ! setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$TMPDIR"; then
        echo "TMPDIR=$TMPDIR cannot be entered by PostgreSQL's own user: using /tmp instead"
        TMPDIR=/tmp
    fi
}

free_port() {
    /usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start_postgres() {
    local folder=$1 as=()
    as_postgres
    [ -d "$folder" ] || { echo "start_postgres: there is no folder '$folder'" >&2; return 1; }
    PG_BIN=$(find_postgres)
    [ -n "$PG_BIN" ] || { echo "no PostgreSQL server is installed: run ./test.sh once, or 'apt-get install postgresql' as root" >&2; return 1; }
    chmod 755 "$folder"
    mkdir "$folder/pg"
    [ "$(id -u)" -ne 0 ] || chown postgres "$folder/pg"
    "${as[@]}" "$PG_BIN/initdb" -D "$folder/pg/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >"$folder/initdb.log" 2>&1 || { cat "$folder/initdb.log" >&2; return 1; }
    serve_postgres "$@"
}

# As PostgreSQL's own user when we are root, which it refuses to run as.
as_postgres() {
    [ "$(id -u)" -ne 0 ] || as=(setpriv --reuid postgres --regid postgres --init-groups)
}

serve_postgres() {
    local folder=$1 kind=$2 port settings as=()
    as_postgres
    case $kind in
        # Lives for one run of the suite, and need not survive anything.
        fast) settings=(-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c shared_buffers=256MB) ;;
        # What a production server promises.
        durable) settings=(-c fsync=on -c synchronous_commit=on -c shared_buffers=1GB -c max_wal_size=4GB) ;;
    esac
    settings+=("${@:3}")
    for _ in 1 2 3 4 5; do
        port=$(free_port)
        # `exec`, so that the process id is the server's own, known before it answers.
        (cd "$folder/pg" && exec "${as[@]}" "$PG_BIN/postgres" -D "$folder/pg/data" -p "$port" -c listen_addresses=127.0.0.1 \
            -c unix_socket_directories="$folder/pg" -c max_connections=400 "${settings[@]}") >"$folder/postgres.log" 2>&1 &
        PG_PID=$!
        for _ in $(seq 300); do
            if "$PG_BIN/pg_isready" -q -h 127.0.0.1 -p "$port"; then
                PG_URL="postgres://postgres@127.0.0.1:$port/postgres"
                return
            fi
            kill -0 "$PG_PID" 2>/dev/null || break
            sleep 0.1
        done
        stop_postgres
    done
    cat "$folder/postgres.log" >&2
    return 1
}

stop_postgres() {
    [ -n "${PG_PID:-}" ] || return 0
    # Fast shutdown; only the server that we started.
    kill -INT "$PG_PID" 2>/dev/null || true
    for _ in $(seq 100); do kill -0 "$PG_PID" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$PG_PID" 2>/dev/null || true
    PG_PID=
}
