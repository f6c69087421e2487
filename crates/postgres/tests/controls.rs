//! Negative controls on the real thing: the SQL of the store with one mistake planted in it. Each must be noticed by the cases
//! named for it; a suite that cannot fail proves nothing.

use posthouse_postgres::sql;
use posthouse_testkit::suite;
use std::time::Duration;

use crate::fixture::PostgresFixture;

/// A mistake: what it is, the file, the text that is replaced, by what, and the cases that must fail.
struct Mistake {
    name: &'static str,
    file: &'static str,
    right: &'static str,
    wrong: &'static str,
    cases: &'static [&'static str],
}

const MISTAKES: [Mistake; 62] = [
    Mistake {
        name: "no fence",
        file: "settle",
        right: "l.seq = ANY (ARRAY[i.seq]) AND l.token = i.token AND",
        wrong: "l.seq = ANY (ARRAY[i.seq]) AND",
        cases: &[
            "stale_token_is_refused_by_settle",
            "workers_of_one_name_are_told_apart",
            "a_foreign_token_is_refused",
        ],
    },
    Mistake {
        name: "no fence in the lean way",
        file: "settle",
        right: "AND l.token = p_token[i] AND",
        wrong: "AND",
        cases: &["stale_token_is_refused_by_settle", "workers_of_one_name_are_told_apart"],
    },
    Mistake {
        name: "one fence for all claims",
        file: "settle",
        right: "AND l.token = p_token[i] AND",
        wrong: "AND l.token = ANY (p_token) AND",
        cases: &["a_late_settlement_beside_those_of_a_newer_claim_ends_nothing"],
    },
    Mistake {
        name: "fence by worker",
        file: "settle",
        right: "l.token = i.token",
        wrong: "l.worker = coalesce((SELECT max(x.worker) FROM attempt x WHERE x.token = i.token), l.worker)",
        cases: &["workers_of_one_name_are_told_apart"],
    },
    Mistake {
        name: "no deadline",
        file: "settle",
        right: "AND l.until > t",
        wrong: "",
        cases: &["an_expired_lease_cannot_be_used"],
    },
    Mistake {
        name: "repair without guard",
        file: "settle",
        right: "WHERE i.outcome = 6 AND l.until <= p_now",
        wrong: "WHERE i.outcome = 6",
        cases: &["a_renewed_lease_is_not_expired", "the_deadline_belongs_to_the_repairer"],
    },
    Mistake {
        name: "renewal without fence",
        file: "renew_lease",
        right: "ON l.seq = ANY (ARRAY[i.seq]) AND l.token = i.token",
        wrong: "ON l.seq = ANY (ARRAY[i.seq])",
        cases: &["stale_token_is_refused_by_renew"],
    },
    Mistake {
        name: "count-based key limit",
        file: "pick_keyed",
        right: "AND b.token <> p_token",
        wrong: "AND false",
        cases: &[
            "a_key_belongs_to_one_claim_at_a_time",
            "a_run_half_settled_still_holds_its_key",
        ],
    },
    Mistake {
        name: "a tenant at its limit is claimed all the same",
        file: "lanes",
        right: "WHERE (w.lane & 4294967295) <> ALL (p_left)",
        wrong: "",
        cases: &["left_tenants_are_left_alone"],
    },
    Mistake {
        name: "cursor polling",
        file: "sample_floor",
        right: "oldest := pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
        wrong: "oldest := 9223372036854775807",
        cases: &["a_late_commit_in_a_busy_line_is_found"],
    },
    Mistake {
        name: "dedupe that forgets",
        file: "find_twins",
        right: "dedupe_ended(d.id, d.ended_at) + lifetime <= p_now END AS free",
        wrong: "dedupe_ended(d.id, d.ended_at) IS NOT NULL END AS free",
        cases: &["the_lifetime_starts_when_the_message_ends", "the_key_outlives_the_body"],
    },
    Mistake {
        name: "attempts counted at settle",
        file: "grant_leases",
        right: "d.attempts + 1, d.generation, d.bytes, d.max_attempts, d.releases, p_worker",
        wrong: "d.attempts, d.generation, d.bytes, d.max_attempts, d.releases, p_worker",
        cases: &[
            "death_on_the_last_attempt_ends_in_dead",
            "attempts_are_gapless_and_epochs_rise",
        ],
    },
    Mistake {
        name: "a claim that was held up grants leases that are over",
        file: "grant_leases",
        right: "IF first_until - clock() < lease / 2 THEN",
        wrong: "IF false THEN",
        cases: &["claim_longer_than_half_its_lease_grants_nothing"],
    },
    Mistake {
        name: "tenants that are known hide their neighbours",
        file: "pick_ready",
        right: "fresh := fresh || more_lanes(",
        wrong: "PERFORM more_lanes(",
        cases: &["many_tenants_fill_a_claim"],
    },
    Mistake {
        name: "what is left of a share is left",
        file: "pick_ready",
        right: "EXIT WHEN wanted = 0 OR lanes IS NULL;",
        wrong: "EXIT;",
        cases: &["unused_shares_go_on_until_the_batch_is_full"],
    },
    Mistake {
        name: "the end of a holder whose time is up counts",
        file: "ledger",
        right: "AND l.token = p_token AND l.status = 0 AND l.lease_until > t;",
        wrong: "AND l.token = p_token AND l.status = 0;",
        cases: &["a_late_end_changes_nothing"],
    },
    Mistake {
        name: "a renewal counts whose time is up",
        file: "ledger",
        right: "SELECT l.status = 0 AND (l.lease_until > t) IS TRUE, l.checkpoint",
        wrong: "SELECT l.status = 0, l.checkpoint",
        cases: &["a_renewal_after_the_deadline_is_refused"],
    },
    Mistake {
        name: "whoever ends an entry has ended it",
        file: "ledger",
        right: "AND l.key = p_key AND l.token = p_token AND l.status = 0",
        wrong: "AND l.key = p_key AND l.status = 0",
        cases: &[
            "an_end_with_an_invented_token_changes_nothing",
            "a_late_end_does_not_overwrite_a_new_holder",
        ],
    },
    Mistake {
        name: "a key that was begun is busy for ever",
        file: "ledger",
        right: "(e.lease_until > t OR",
        wrong: "(e.lease_until IS NOT NULL OR",
        cases: &["a_holder_who_is_not_heard_of_is_replaced"],
    },
    Mistake {
        name: "whoever begins does not ask who is at it",
        file: "ledger",
        right: "ELSE is_in_hand(tenant, scope, key) END) THEN",
        wrong: "ELSE false END) THEN",
        cases: &["nobody_waits_for_a_holders_transaction"],
    },
    Mistake {
        name: "the answer to something else is told",
        file: "ledger",
        right: "IF there AND e.fingerprint <> ledger_begin.fingerprint THEN",
        wrong: "IF false THEN",
        cases: &[
            "something_else_is_a_mismatch_after_success",
            "something_else_is_a_mismatch_while_it_is_in_flight",
            "it_answers_as_the_rules_do",
        ],
    },
    Mistake {
        name: "the death of a message is that of what it does not have",
        file: "ledger_relay",
        right: "IF FOUND OR NOT p_succeeded THEN RETURN; END IF;",
        wrong: "IF FOUND THEN RETURN; END IF;",
        cases: &[
            "a_death_of_a_message_that_had_nothing_leaves_nothing",
            "a_holder_goes_on_after_a_message_died",
        ],
    },
    Mistake {
        name: "the death of a message is not told",
        file: "ledger_relay",
        right: "FOR EACH ROW WHEN (NEW.reason <> 0)",
        wrong: "FOR EACH ROW WHEN (NEW.reason = 9)",
        cases: &[
            "a_death_fails_the_entry_with_its_status",
            "a_lease_that_runs_out_is_heard_of",
            "a_deliver_by_that_passes_is_heard_of",
        ],
    },
    Mistake {
        name: "who has lost his lease takes an entry",
        file: "ledger_relay",
        right: "            PERFORM FROM lot l WHERE l.token = lease_token AND l.seqs @> m.seq FOR SHARE SKIP LOCKED;\n            IF NOT FOUND THEN",
        wrong: "            IF false THEN",
        cases: &["who_has_lost_his_lease_takes_nothing"],
    },
    Mistake {
        name: "an entry that a message has runs out",
        file: "ledger_relay",
        right: "message = p_message[1], updated_at = e.t, expires_at = NULL",
        wrong: "message = p_message[1], updated_at = e.t",
        cases: &["an_entry_that_a_message_has_is_not_past_its_time"],
    },
    Mistake {
        name: "a replay leaves the entry failed",
        file: "operator",
        right: "    PERFORM reopen_entry(m);\n",
        wrong: "",
        cases: &["a_replay_opens_the_entry_again"],
    },
    Mistake {
        name: "two messages have one entry",
        file: "ledger_relay",
        right: "ELSIF e.status = 0 AND e.lease_until IS NULL AND e.message IS NOT NULL THEN",
        wrong: "ELSIF false THEN",
        cases: &[
            "another_message_is_waited_for",
            "of_many_messages_of_one_key_one_is_sent",
        ],
    },
    Mistake {
        name: "no turns",
        file: "enqueue_many",
        right: "PERFORM take_turns(p_namespace, p_tenant, p_order_key, p_relaxed);",
        wrong: "NULL;",
        cases: &["strict_producers_take_turns"],
    },
    Mistake {
        name: "a retry keeps the rest of its run",
        file: "settle",
        right: "PERFORM release_rest(lanes, hashes, keys, tokens, places, t);",
        wrong: "NULL;",
        cases: &["a_failure_in_a_run_releases_the_rest"],
    },
    Mistake {
        name: "what is behind a run stays out of the way",
        file: "grant_leases",
        right: "WHERE n.wait = 2",
        wrong: "WHERE false",
        cases: &["a_waiting_head_that_is_taken_away_frees_its_key"],
    },
    Mistake {
        name: "what is behind a head that was taken away stays out of the way",
        file: "pick_keyed",
        right: "IF next.wait = 2",
        wrong: "IF false",
        cases: &["a_waiting_head_that_is_taken_away_frees_its_key"],
    },
    Mistake {
        name: "the oldest fall due first, whose ever they are",
        file: "promote",
        right: "WHERE q.lane = u.l AND least(q.due_at, q.deliver_by) <= p_now",
        wrong: "WHERE false",
        cases: &[
            "a_flood_that_falls_due_does_not_delay_another_tenant",
            "a_flood_that_falls_due_hides_nothing_from_a_scoped_claim",
        ],
    },
    Mistake {
        name: "an expiry keeps the rest of its run",
        file: "settle",
        right: "(d.next = 2 OR d.blocking) AS back",
        wrong: "(d.next = 2 OR d.blocking) AND d.outcome <> 6 AS back",
        cases: &[
            "an_expiry_lets_go_of_the_rest_of_its_run",
            "an_expiry_in_a_run_lets_go_of_what_is_later",
            "an_expired_head_that_blocks_releases_its_run",
        ],
    },
    Mistake {
        name: "receipts of what did not win are kept",
        file: "settle",
        right: "FROM unnest(won) w(o) WHERE",
        wrong: "FROM generate_series(1, n) w(o) WHERE",
        cases: &["only_what_wins_keeps_its_receipt"],
    },
    Mistake {
        name: "receipts outlive their messages",
        file: "prune",
        right: "DELETE FROM receipt r WHERE r.seq = ANY (seqs);",
        wrong: "",
        cases: &["a_receipt_goes_with_its_message"],
    },
    Mistake {
        name: "a prune of what is done removes dead letters",
        file: "prune",
        right: "prune_states(older_than, max_rows, 'done', actor",
        wrong: "prune_states(older_than, max_rows, 'all', actor",
        cases: &["prune_leaves_dead_letters_unless_asked"],
    },
    Mistake {
        name: "a dry run of a prune is not rolled back",
        file: "prune",
        right: "RAISE 'this was a dry run' USING ERRCODE = 'P7099';",
        wrong: "RETURN;",
        cases: &["dry_run_of_a_prune_counts_and_changes_nothing"],
    },
    Mistake {
        name: "each call of a prune writes another audit row",
        file: "prune",
        right: "WHERE a.n = prune_states.audit AND",
        wrong: "WHERE a.n < 0 AND",
        cases: &["prune_writes_one_audit_row_with_its_counts"],
    },
    Mistake {
        name: "no fence for leases that stand together",
        file: "lots",
        right: "FROM lot l WHERE l.token = p_token AND l.until > p_now ORDER BY",
        wrong: "FROM lot l WHERE l.until > p_now ORDER BY",
        cases: &["a_foreign_token_is_refused"],
    },
    Mistake {
        name: "no deadline for leases that stand together",
        file: "lots",
        // It is judged twice: by those that are not waited for, and after the lock.
        right: "l.token = p_token AND l.until > p_now ORDER BY l.n FOR UPDATE LOOP
        -- The deadline is judged after the lock.
        CONTINUE WHEN g.until <= clock();",
        wrong: "l.token = p_token ORDER BY l.n FOR UPDATE LOOP",
        cases: &["an_expired_lease_cannot_be_used"],
    },
    Mistake {
        name: "who renews one renews all that stand with it",
        file: "lots",
        right: "IF g.seqs <@ g.given THEN",
        wrong: "IF true THEN",
        cases: &["who_renews_one_lease_renews_no_other"],
    },
    Mistake {
        name: "leases that stand together never run out",
        file: "lots",
        right: "FROM lot l WHERE l.until <= p_now AND",
        wrong: "FROM lot l WHERE false AND",
        cases: &["who_renews_one_lease_renews_no_other"],
    },
    Mistake {
        name: "what ended stays with the others",
        file: "lots",
        right: "SET seqs = x.seqs - p_part WHERE",
        wrong: "SET seqs = x.seqs WHERE",
        cases: &["leases_of_one_claim_end_each_in_its_own_way"],
    },
    Mistake {
        name: "a lease that stands alone since is not looked for",
        file: "lots",
        right: "INSERT INTO deadline (until, token, half, seqs)\n    SELECT l.until, l.token, l.half, array_agg(s) FROM numbers(p_part) s;",
        wrong: "",
        cases: &["a_lease_that_was_renewed_alone_runs_out_too"],
    },
    Mistake {
        name: "what ran out below where the last page ended is opened first",
        file: "expired",
        right: "open_over(t, p_after,",
        wrong: "open_over(t, -1,",
        cases: &["a_pass_over_what_ran_out_reaches_its_end"],
    },
    Mistake {
        name: "what failed is not in the line",
        file: "settle",
        right: "d.pos, d.seq, nextval('message_seq_seq'), CASE",
        wrong: "d.pos, d.seq, d.pos, CASE",
        cases: &["what_failed_is_found_in_its_place"],
    },
    Mistake {
        name: "what was let go is not in the line",
        file: "settle",
        right: "d.pos, d.seq, nextval('message_seq_seq'), p_now",
        wrong: "d.pos, d.seq, d.pos, p_now",
        cases: &["what_was_let_go_is_found_in_its_place"],
    },
    Mistake {
        name: "what fell due is not in the line",
        file: "promote",
        right: "SET wait = 0, line = nextval('message_seq_seq') WHERE",
        wrong: "SET wait = 0 WHERE",
        cases: &["what_was_delayed_is_found_in_its_place"],
    },
    Mistake {
        name: "what can be sent again is not in the line",
        file: "promote",
        right: "topic = NULL, line = nextval('message_seq_seq') WHERE",
        wrong: "topic = NULL WHERE",
        cases: &["what_was_left_is_found_in_its_place"],
    },
    Mistake {
        name: "what was behind is not in the line",
        file: "pick_keyed",
        right: "SET wait = 0, line = nextval('message_seq_seq') WHERE",
        wrong: "SET wait = 0 WHERE",
        cases: &["what_was_behind_is_found_in_its_place"],
    },
    Mistake {
        name: "what is replayed is not in the line",
        file: "operator",
        right: "p_pos, m.seq, nextval('message_seq_seq'), p_due",
        wrong: "p_pos, m.seq, p_pos, p_due",
        cases: &["what_was_replayed_is_found_in_its_place"],
    },
    Mistake {
        name: "leases are passed",
        file: "sample_floor",
        right: "WHERE l.seq > p_keys AND l.line = l.pos",
        wrong: "WHERE false",
        cases: &["a_key_that_is_held_for_long_is_held"],
    },
    Mistake {
        name: "what came back holds nothing",
        file: "pick_keyed",
        right: "AND b.line <> b.pos AND b.token <> p_token",
        wrong: "AND b.line <> b.pos AND false",
        cases: &["a_key_that_is_held_by_what_came_back_is_held"],
    },
    Mistake {
        name: "what was behind holds nothing",
        file: "grant_leases",
        right: "CASE WHEN d.wait = 0 THEN d.line ELSE 0 END",
        wrong: "d.line",
        cases: &["a_key_that_is_held_by_what_was_behind_is_held"],
    },
    Mistake {
        name: "the oldest in the line is taken for the first of its key",
        file: "pick_keyed",
        right: "WHERE NOT p_all AND",
        wrong: "WHERE false AND",
        cases: &["a_head_that_came_back_is_found_among_very_many"],
    },
    Mistake {
        name: "a saga is written over",
        file: "saga",
        right: "s.id = p_saga[a] AND s.revision = p_revision[a]",
        wrong: "s.id = p_saga[a]",
        cases: &[
            "of_two_that_decide_at_once_one_is_stale",
            "a_change_of_what_has_changed_is_stale",
        ],
    },
    Mistake {
        name: "what was granted since is taken back",
        file: "saga",
        right: "IF NOT FOUND OR v.epoch <> w.epoch OR v.state NOT IN",
        wrong: "IF NOT FOUND OR v.state NOT IN",
        cases: &["what_somebody_is_at_is_not_taken_back"],
    },
    Mistake {
        name: "another input is the same saga",
        file: "saga",
        right: "CASE WHEN s.digest = p_hash[2] THEN 'existing' ELSE 'mismatch' END",
        wrong: "'existing'",
        cases: &["a_key_with_another_input_is_a_mismatch"],
    },
    Mistake {
        name: "a version has any content",
        file: "saga",
        right: "IF d.n IS NOT NULL AND d.hash = p_hash[1] THEN",
        wrong: "IF d.n IS NOT NULL THEN",
        cases: &["a_version_has_one_content"],
    },
    Mistake {
        name: "what never came is not remembered as undone",
        file: "saga",
        right: "VALUES (p_consumer[1], p_key[1], p_undo[1], clock())",
        wrong: "VALUES (p_consumer[1], p_key[1], false, clock())",
        cases: &["what_was_undone_before_it_came_is_refused"],
    },
    Mistake {
        name: "sagas that are under way are pruned",
        file: "saga",
        right: "WHERE s.finished_at <= p_cutoff ORDER BY s.finished_at",
        wrong: "WHERE s.created_at <= p_cutoff ORDER BY s.created_at",
        cases: &["sagas_that_are_over_are_pruned"],
    },
    Mistake {
        name: "messages of sagas are anybody's",
        file: "operator",
        right: "(take_out.message).kind >= 2 AND",
        wrong: "(take_out.message).kind >= 9 AND",
        cases: &["verbs_of_messages_do_not_apply_to_sagas"],
    },
];

/// A store with the mistake planted.
async fn planted(mistake: &Mistake) -> PostgresFixture {
    let fx = match mistake.file {
        "lots" | "expired" => PostgresFixture::together().await,
        _ => PostgresFixture::new().await,
    };
    let (_, text) = sql::FUNCTIONS
        .iter()
        .find(|(name, _)| *name == mistake.file)
        .expect("the file");
    assert!(
        text.contains(mistake.right),
        "{}: the text to replace is gone from {}.sql",
        mistake.name,
        mistake.file
    );
    let flawed = text
        .replace(mistake.right, mistake.wrong)
        .replace("search_path = posthouse,", &format!("search_path = {},", fx.schema));
    fx.run(&flawed).await;
    fx
}

/// Whether the case passes. One that hangs does not.
async fn passes(case: &str, fx: PostgresFixture) -> bool {
    let run = suite::find(case);
    let running = tokio::spawn(async move { run(&fx).await });
    matches!(tokio::time::timeout(Duration::from_secs(60), running).await, Ok(Ok(())))
}

async fn is_noticed(name: &str) {
    let mistake = MISTAKES.iter().find(|m| m.name == name).expect("the mistake");
    for case in mistake.cases {
        assert!(
            !passes(case, planted(mistake).await).await,
            "{case} does not notice: {name}"
        );
    }
}

macro_rules! controls {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            is_noticed($name).await;
        })*

        #[test]
        fn every_mistake_has_its_test() {
            assert_eq!(MISTAKES.map(|m| m.name), [$($name),*]);
        }
    };
}

controls! {
    no_fence_is_noticed: "no fence",
    no_fence_in_the_lean_way_is_noticed: "no fence in the lean way",
    one_fence_for_all_claims_is_noticed: "one fence for all claims",
    a_fence_by_worker_is_noticed: "fence by worker",
    no_deadline_is_noticed: "no deadline",
    repair_without_guard_is_noticed: "repair without guard",
    renewal_without_fence_is_noticed: "renewal without fence",
    a_count_based_key_limit_is_noticed: "count-based key limit",
    a_tenant_over_its_limit_is_noticed: "a tenant at its limit is claimed all the same",
    cursor_polling_is_noticed: "cursor polling",
    a_forgetful_dedupe_is_noticed: "dedupe that forgets",
    attempts_counted_at_settle_are_noticed: "attempts counted at settle",
    late_grants_are_noticed: "a claim that was held up grants leases that are over",
    hidden_neighbours_are_noticed: "tenants that are known hide their neighbours",
    an_unused_share_that_is_left_is_noticed: "what is left of a share is left",
    a_late_end_that_counts_is_noticed: "the end of a holder whose time is up counts",
    a_late_renewal_that_counts_is_noticed: "a renewal counts whose time is up",
    an_end_without_a_fence_is_noticed: "whoever ends an entry has ended it",
    a_key_that_is_busy_for_ever_is_noticed: "a key that was begun is busy for ever",
    who_does_not_ask_who_is_at_it_is_noticed: "whoever begins does not ask who is at it",
    an_answer_to_something_else_is_noticed: "the answer to something else is told",
    a_death_that_is_not_its_own_is_noticed: "the death of a message is that of what it does not have",
    a_death_that_is_not_told_is_noticed: "the death of a message is not told",
    an_entry_for_a_lost_lease_is_noticed: "who has lost his lease takes an entry",
    an_entry_of_a_message_that_runs_out_is_noticed: "an entry that a message has runs out",
    a_replay_that_opens_nothing_is_noticed: "a replay leaves the entry failed",
    two_messages_of_one_entry_are_noticed: "two messages have one entry",
    missing_turns_are_noticed: "no turns",
    a_run_that_goes_on_is_noticed: "a retry keeps the rest of its run",
    what_is_left_behind_a_run_is_noticed: "what is behind a run stays out of the way",
    what_is_left_behind_a_head_is_noticed: "what is behind a head that was taken away stays out of the way",
    unfair_due_times_are_noticed: "the oldest fall due first, whose ever they are",
    a_run_that_goes_on_after_an_expiry_is_noticed: "an expiry keeps the rest of its run",
    receipts_of_what_did_not_win_are_noticed: "receipts of what did not win are kept",
    receipts_that_outlive_their_messages_are_noticed: "receipts outlive their messages",
    pruning_dead_letters_is_noticed: "a prune of what is done removes dead letters",
    a_dry_run_that_removes_is_noticed: "a dry run of a prune is not rolled back",
    an_audit_row_for_each_call_is_noticed: "each call of a prune writes another audit row",
    no_fence_for_leases_together_is_noticed: "no fence for leases that stand together",
    no_deadline_for_leases_together_is_noticed: "no deadline for leases that stand together",
    renewing_all_for_one_is_noticed: "who renews one renews all that stand with it",
    leases_together_that_never_run_out_are_noticed: "leases that stand together never run out",
    what_ended_and_stays_with_the_others_is_noticed: "what ended stays with the others",
    a_lease_alone_that_is_not_looked_for_is_noticed: "a lease that stands alone since is not looked for",
    a_pass_that_opens_what_is_below_is_noticed: "what ran out below where the last page ended is opened first",
    a_failure_that_is_passed_is_noticed: "what failed is not in the line",
    a_release_that_is_passed_is_noticed: "what was let go is not in the line",
    a_delay_that_is_passed_is_noticed: "what fell due is not in the line",
    a_left_topic_that_is_passed_is_noticed: "what can be sent again is not in the line",
    one_behind_that_is_passed_is_noticed: "what was behind is not in the line",
    a_replay_that_is_passed_is_noticed: "what is replayed is not in the line",
    a_lease_that_is_passed_is_noticed: "leases are passed",
    a_lease_of_what_came_back_that_is_passed_is_noticed: "what came back holds nothing",
    a_lease_of_what_was_behind_that_is_passed_is_noticed: "what was behind holds nothing",
    a_wrong_head_among_very_many_is_noticed: "the oldest in the line is taken for the first of its key",
    a_saga_that_is_written_over_is_noticed: "a saga is written over",
    taking_back_what_was_granted_since_is_noticed: "what was granted since is taken back",
    another_input_that_passes_is_noticed: "another input is the same saga",
    a_version_of_two_contents_is_noticed: "a version has any content",
    a_missing_tombstone_is_noticed: "what never came is not remembered as undone",
    pruning_what_is_under_way_is_noticed: "sagas that are under way are pruned",
    a_verb_that_passes_by_the_saga_is_noticed: "messages of sagas are anybody's",
}
