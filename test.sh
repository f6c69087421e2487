#!/usr/bin/env bash
# The front door: everything that must hold, in one command. What CI runs is what you run.
#
#   ./test.sh          all of it
#   ./test.sh fast     formatting and tests of the core alone; no server
#
# On a bare Debian with Rust and a C compiler it installs what is missing from Debian's packages (when it may), starts a
# private PostgreSQL and PgBouncer (own data folder, free ports, loopback only), runs everything, and stops what it started, by process id.
# It needs no server that somebody else started. A part that cannot run is named, and fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. scripts/postgres.sh
. scripts/pgbouncer.sh

mode=${1:-all}
features=posthouse-postgres/sqlx,posthouse-postgres/tls,posthouse-postgres/diesel-async,posthouse-postgres/sea-orm,posthouse-sqlite/sqlx,posthouse-sqlite/sea-orm,posthouse-transports/http,posthouse/http,posthouse/sqlx,posthouse/axum,posthouse-server/failpoints
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/posthouse/target}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# In a clone that is used once nothing is to be built again from parts.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0
open_tmpdir
scratch=$(mktemp -d "$TMPDIR/posthouse-test.XXXXXX")
times=() running='' since=0 sessions_pid=''

stop() {
    local status=$? at=$running
    timed
    stop_pgbouncer
    BOUNCER_PID=$sessions_pid
    stop_pgbouncer
    stop_postgres
    drop_policy
    rm -rf "$scratch"
    printf '\n%s\n' "minutes per stage:"
    printf '  %s\n' "${times[@]:-none}"
    if [ "$status" -eq 0 ]; then echo "all passed"; else echo "FAILED${at:+ in: $at} (exit $status)"; fi
    exit "$status"
}
trap stop EXIT
trap 'exit 130' INT TERM

# The function runs as plainly as here, with nothing behind it that asks how it went: in `f || ...` bash would go on after a
# command of f that fails. The first failure ends everything, by way of `stop`.
stage() {
    running=$1 since=$SECONDS
    shift
    printf '\n== %s\n' "$running"
    "$@"
    timed
}

timed() {
    [ -n "$running" ] || return 0
    times+=("$(awk -v s="$((SECONDS - since))" -v name="$running" 'BEGIN { printf "%5.1f  %s", s / 60, name }')")
    running=''
}

# What cannot be installed from here: each with the next step, all at once.
tools() {
    local missing=() needed have
    if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
        missing+=("cargo and rustc: install Rust from https://rustup.rs")
    else
        needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
        have=$(rustc --version | cut -d' ' -f2)
        if [ "$(printf '%s\n' "$needed" "${have%%-*}" | sort -V | head -n 1)" != "$needed" ]; then
            missing+=("rustc $needed or later (this one is $have): run 'rustup update'")
        fi
        cargo fmt --version >/dev/null 2>&1 || missing+=("rustfmt: run 'rustup component add rustfmt'")
        [ "$mode" = fast ] || cargo clippy --version >/dev/null 2>&1 || missing+=("clippy: run 'rustup component add clippy'")
    fi
    command -v "${CC:-cc}" >/dev/null || missing+=("a C compiler (${CC:-cc}), to link programs and to build SQLite: run 'apt-get install gcc libc6-dev' as root")
    [ ${#missing[@]} -gt 0 ] || { echo "all there"; return 0; }
    printf 'missing: %s\n' "${missing[@]}" >&2
    echo "then run ./test.sh again" >&2
    return 1
}

# Several clones share one build folder, and cargo goes by the age of files alone: what another clone built later than this
# one's sources were written would pass for ours. So our own crates are built anew when the clone is another one.
own_build() {
    local mark=$CARGO_TARGET_DIR/clone
    if [ "$(cat "$mark" 2>/dev/null)" != "$PWD" ]; then
        # shellcheck disable=SC2046
        cargo clean --quiet $(sed -s -n '0,/^name = /s/^name = "\(.*\)"/-p \1/p' benches/Cargo.toml crates/*/Cargo.toml)
        mkdir -p "$CARGO_TARGET_DIR"
        echo "$PWD" >"$mark"
    fi
}

# Removed also when we are interrupted: left behind, it would keep later packages from starting their services.
policy=/usr/sbin/policy-rc.d made_policy=no
drop_policy() {
    [ "$made_policy" = no ] || rm -f "$policy"
    made_policy=no
}

install_missing() {
    local missing=()
    [ -n "$(find_postgres)" ] || missing+=(postgresql)
    command -v psql >/dev/null || missing+=(postgresql-client)
    PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || missing+=(pgbouncer)
    command -v openssl >/dev/null || missing+=(openssl)
    command -v curl >/dev/null || missing+=(curl)
    [ -x /usr/bin/python3 ] || missing+=(python3)
    /usr/bin/python3 -c 'import psycopg' 2>/dev/null || missing+=(python3-psycopg)
    [ ${#missing[@]} -gt 0 ] || { echo "nothing is missing"; return 0; }
    echo "missing: ${missing[*]}"
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "cannot install them here: run 'apt-get install ${missing[*]}' as root, then ./test.sh again" >&2
        return 1
    fi
    # Packages must not start services of their own: refuse it for the time of the install, and never make a cluster.
    if [ ! -e "$policy" ]; then made_policy=yes; printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod +x "$policy"; fi
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] || echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
    local status=0
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$scratch/apt.log" 2>&1 || status=$?
    drop_policy
    [ "$status" -eq 0 ] || tail -n 20 "$scratch/apt.log" >&2
    return "$status"
}

private_servers() {
    start_postgres "$scratch" fast
    export POSTHOUSE_TEST_POSTGRES=$PG_URL POSTHOUSE_TEST_PSQL=$PG_BIN/psql POSTHOUSE_TEST_PYTHON=/usr/bin/python3
    echo "PostgreSQL from $PG_BIN at $PG_URL"
    # The suite's cases take over each other's sessions: a new one compiles and plans every function again, which took longer than most cases.
    start_pgbouncer "$scratch" session
    export POSTHOUSE_TEST_SESSIONS=$BOUNCER_URL
    sessions_pid=$BOUNCER_PID BOUNCER_PORT=''
    start_pgbouncer "$scratch"
    export POSTHOUSE_TEST_PGBOUNCER=$BOUNCER_URL
    echo "PgBouncer in front of it at $POSTHOUSE_TEST_SESSIONS (session mode) and $BOUNCER_URL (transaction mode)"
}

format() {
    cargo fmt --all --check
    rustfmt --check --edition 2024 examples/drivers/*/src/main.rs
}
# Resolves every lock file again; nothing is downloaded but index entries, nothing is built. The attempt without the network comes first: it is
# enough where the index is cached, and a stale file gets cargo's clear error only from the second attempt.
lock_files() {
    local lock manifest
    git ls-files '*Cargo.lock' >"$scratch/locks"
    while read -r lock; do
        manifest=${lock%.lock}.toml
        cargo update --workspace --locked --quiet --offline --manifest-path "$manifest" 2>/dev/null ||
            cargo update --workspace --locked --quiet --manifest-path "$manifest" || {
            echo "$lock: not current; run 'cargo update --workspace --manifest-path $manifest' and commit the change" >&2
            return 1
        }
        echo "$lock is current"
    done <"$scratch/locks"
}
# All but the store that takes minutes to compile: that comes last.
most=(--workspace --exclude posthouse-surreal)
# What users build is checked by itself: with the features of tests and examples something that it lacks may be there.
users_build() { cargo check --quiet; }
# Whatever is compiled of ours from here on is linted by the same compilation.
build() {
    export RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/clippy
    cargo test "${most[@]}" --no-run --quiet --features "$features"
}
docs() { RUSTDOC=$PWD/scripts/rustdoc cargo test "${most[@]}" --doc --quiet --features "$features"; }

tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        # Many wait for a lease or a process most of the time: twice as many as there are cores. How long each one takes: TELL=pass ./test.sh
        cargo nextest run --no-fail-fast --test-threads "$(($(nproc) * 2))" --status-level "${TELL:-fail}" --final-status-level fail "$@"
    else
        cargo test --lib --bins --tests --no-fail-fast --quiet "$@"
    fi
}

# Built as the tests were, so that little is built again.
story() {
    cargo build "${most[@]}" --bins --examples --quiet --features "$features"
    BUILT=yes examples/payment_dispatch/run
}

# On SQLite and on PostgreSQL. Then the program of the README, until it has delivered.
billing_story() {
    local line='' program
    BUILT=yes examples/usage_billing/run
    BUILT=yes examples/usage_billing/run "$PG_URL"
    exec 4< <(cd "$scratch" && exec "$CARGO_TARGET_DIR/debug/examples/quickstart")
    program=$!
    read -r -t 60 line <&4 || true
    kill "$program" 2>/dev/null || true
    exec 4<&-
    echo "the README's program: ${line:-silent}"
    [ "$line" = "1204 tokens are billed" ]
}
# In a file of its own; the tests tell it on PostgreSQL too.
writeback() { BUILT=yes examples/memory_writeback/run; }

# Its client is curl.
orders_story() {
    BUILT=yes examples/order_execution/run
    BUILT=yes examples/order_execution/run postgres
}

# Over HTTP and over functions.
trips_story() {
    BUILT=yes examples/trip_saga/run
    BUILT=yes examples/trip_saga/run postgres
}

# Applications with other drivers, each resolved by itself as it would be elsewhere: only one SQLite can be linked, so a driver may
# allow one version of ours and not another. Without a registry the resolver takes what is here.
beside() {
    local app file
    unset RUSTC_WORKSPACE_WRAPPER
    export CARGO_PROFILE_DEV_DEBUG=line-tables-only
    for app in examples/drivers/*/; do
        file=$scratch/$(basename "$app").db
        cargo generate-lockfile --quiet --manifest-path "$app/Cargo.toml" 2>"$scratch/resolve" || {
            echo "no registry: $(tail -n 1 "$scratch/resolve")"
            cargo generate-lockfile --quiet --offline --manifest-path "$app/Cargo.toml"
        }
        echo "$(basename "$app"), with rusqlite $(sed -n '/^name = "rusqlite"/{n;s/version = //p}' "$app/Cargo.lock")"
        : >"$file"
        DATABASE_URL=$PG_URL cargo run --quiet --manifest-path "$app/Cargo.toml" -- "$file" | tee "$file.out"
        if grep -v ': 1 message$' "$file.out"; then echo "$app: each database should have one message" >&2; return 1; fi
    done
}

# All but the suite through the pooler, which is run apart. Both runners take `-- --skip`.
most_tests() { tests "${most[@]}" --features "$features" -- --skip pooled::; }

# The whole suite through PgBouncer, which is restarted in the middle.
pooled_tests() {
    local first=(enqueue dedupe claim lease settle operator)
    tests "${most[@]}" --features "$features" -- "${first[@]/#/pooled::}"
    stop_pgbouncer
    start_pgbouncer "$scratch"
    tests "${most[@]}" --features "$features" -- pooled:: $(printf -- '--skip pooled::%s:: ' "${first[@]}")
}

# SurrealDB: the store under the suite of every store, its server, the program and the example on it. All of it is one selection of packages and
# features, so that SurrealDB is built once. It comes last, because that takes minutes the first time.
surreal=(-p posthouse-surreal -p posthouse -p posthouse-server --features posthouse/http,posthouse/axum,posthouse/sqlx,posthouse-server/surreal,posthouse-server/failpoints)
surreal_build() {
    export RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/clippy
    cargo build "${surreal[@]}" --bin posthouse --example surreal_server --example writer --example trip_saga --quiet
    cargo test "${surreal[@]}" --test surreal --no-run --quiet
}
surreal_tests() { tests "${surreal[@]}" --test surreal; }
surreal_docs() { RUSTDOC=$PWD/scripts/rustdoc cargo test "${surreal[@]}" --doc --quiet -- surreal Surreal; }
surreal_story() { BUILT=yes examples/trip_saga/run surrealdb; }

case $mode in
    fast)
        stage "tools" tools
        own_build
        stage "formatting" format
        stage "core" cargo test -p posthouse-core --lib --quiet
        ;;
    all)
        stage "tools" tools
        own_build
        stage "formatting" format
        stage "lock files" lock_files
        stage "missing packages" install_missing
        stage "private servers" private_servers
        stage "what users build" users_build
        stage "build and lints" build
        stage "documentation" docs
        stage "tests" most_tests
        stage "tests through PgBouncer" pooled_tests
        stage "example: payment_dispatch" story
        stage "example: usage_billing" billing_story
        stage "example: memory_writeback" writeback
        stage "example: order_execution" orders_story
        stage "example: trip_saga" trips_story
        stage "examples: beside other drivers" beside
        stage "SurrealDB: build and lints" surreal_build
        stage "SurrealDB: tests" surreal_tests
        stage "SurrealDB: documentation" surreal_docs
        stage "SurrealDB: example trip_saga" surreal_story
        ;;
    *)
        echo "usage: ./test.sh [all|fast]" >&2
        exit 2
        ;;
esac
