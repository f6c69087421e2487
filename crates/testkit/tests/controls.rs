//! Negative controls: a suite that cannot fail proves nothing. Each planted flaw must be noticed by the cases named here.

use posthouse_testkit::{Flaw, MemoryFixture, suite};
use std::time::Duration;

/// A flaw, and the cases that must fail because of it.
const CONTROLS: [(Flaw, &[&str]); 21] = [
    (
        Flaw::NoFence,
        &[
            "stale_token_is_refused_by_settle",
            "stale_token_is_refused_by_renew",
            "stale_token_is_refused_by_release",
            "stale_token_is_refused_by_expiry",
            "workers_of_one_name_are_told_apart",
            "a_foreign_token_is_refused",
            "settle_in_refuses_a_lost_lease",
            "a_lease_from_before_the_replay_is_refused",
            "a_stale_run_is_refused_after_the_takeover",
        ],
    ),
    (
        Flaw::FenceByWorker,
        &[
            "workers_of_one_name_are_told_apart",
            "a_foreign_token_is_refused",
            "a_stale_run_is_refused_after_the_takeover",
        ],
    ),
    (
        Flaw::RepairWithoutGuard,
        &[
            "stale_token_is_refused_by_expiry",
            "the_deadline_belongs_to_the_repairer",
            "a_renewed_lease_is_not_expired",
            "a_settled_lease_is_not_expired",
            "of_returning_worker_and_repairers_one_wins",
        ],
    ),
    (
        Flaw::SettleInTwoTransactions,
        &[
            "a_refused_follow_up_leaves_its_lease_untouched",
            "a_poisoned_follow_up_spoils_no_other",
            "a_handler_that_rolls_back_late_has_lost_its_lease",
            "of_two_handlers_one_settles",
            "the_same_report_at_once_is_written_once",
        ],
    ),
    (
        Flaw::CountBasedKeyLimit,
        &[
            "a_key_belongs_to_one_claim_at_a_time",
            "a_key_in_use_delays_no_other_key",
            "a_run_is_cut_by_the_batch",
            "a_run_half_settled_still_holds_its_key",
            "a_run_half_repaired_still_holds_its_key",
            "a_relaxed_late_commit_is_sent_when_it_is_there",
        ],
    ),
    (
        Flaw::CursorPolling,
        &[
            "a_late_commit_is_not_skipped",
            "what_went_back_is_not_skipped",
            "a_failure_is_due_again_after_its_backoff",
            "a_replay_begins_a_new_generation",
            "commits_in_reverse_order_are_all_claimed",
            "an_old_open_transaction_holds_back_nobody",
            "a_blocker_is_replayed_in_its_place",
        ],
    ),
    (
        Flaw::DedupeByLock,
        &[
            "a_repeated_enqueue_answers_the_first",
            "a_second_enqueue_waits_for_the_firsts_commit",
            "fifty_sessions_on_one_key_make_one_message",
            "the_lifetime_starts_when_the_message_ends",
            "the_key_outlives_the_body",
            "of_two_that_waited_one_creates",
            "those_that_waited_are_told_by_the_commit",
        ],
    ),
    (
        Flaw::AttemptsAtSettle,
        &[
            "a_grant_is_visible_at_once",
            "death_on_the_last_attempt_ends_in_dead",
            "the_routes_budget_is_stamped",
            "attempts_are_gapless_and_epochs_rise",
            "an_expired_run_loses_an_attempt_each",
            "every_death_of_a_holder_blocks",
            "what_becomes_due_is_claimed_once",
        ],
    ),
    (Flaw::LateGrants, &["claim_longer_than_half_its_lease_grants_nothing"]),
    (
        Flaw::HeadDoesNotHold,
        &[
            "a_backed_off_head_holds_its_key_and_nothing_else",
            "a_delayed_head_holds_its_key_and_nothing_else",
            "a_delay_in_the_middle_ends_the_run",
        ],
    ),
    (
        Flaw::RunGoesOn,
        &[
            "a_failure_in_a_run_releases_the_rest",
            "a_release_in_a_run_releases_the_rest",
            "the_rest_of_a_run_is_never_counted",
            "a_dead_head_that_blocks_releases_its_run",
            "a_handler_lets_go_of_its_run_at_its_commit",
        ],
    ),
    (
        Flaw::ExpiryKeepsRun,
        &[
            "an_expiry_lets_go_of_the_rest_of_its_run",
            "an_expiry_in_a_run_lets_go_of_what_is_later",
            "what_ran_out_as_well_is_not_let_go",
            "an_expired_head_that_blocks_releases_its_run",
            "a_run_that_a_handler_is_in_is_not_repaired",
            "of_an_expiry_and_the_next_report_one_is_first",
        ],
    ),
    (
        Flaw::NoTurns,
        &[
            "strict_producers_take_turns",
            "a_turn_ends_with_the_rollback",
            "the_turn_passes_on_from_producer_to_producer",
            "a_replay_to_the_tail_takes_its_turn",
        ],
    ),
    (
        Flaw::RelaysNeverGo,
        &[
            "a_silent_relay_is_not_live",
            "a_relay_that_leaves_is_not_live",
            "destinations_are_told",
            "no_relay",
        ],
    ),
    (Flaw::LastPauseStands, &["a_repeated_pause_changes_only_the_audit"]),
    (Flaw::FlightUnseen, &["behind_a_later_one_in_flight"]),
    (
        Flaw::ReceiptsOutlive,
        &["a_receipt_goes_with_its_message", "a_duplicate_prolongs_nothing"],
    ),
    (
        Flaw::PruneTakesDead,
        &[
            "prune_leaves_dead_letters_unless_asked",
            "dry_run_of_a_prune_counts_and_changes_nothing",
            "prune_that_removes_nothing_writes_no_audit",
        ],
    ),
    (
        Flaw::AuditRowForEachPrune,
        &["prune_writes_one_audit_row_with_its_counts"],
    ),
    (
        Flaw::SagaWithoutVersion,
        &[
            "of_two_that_decide_at_once_one_is_stale",
            "one_that_is_stale_spoils_no_other",
            "a_change_of_what_has_changed_is_stale",
        ],
    ),
    (
        Flaw::StepsNeverLapse,
        &[
            "steps_up_to_the_pivot_lapse_at_the_deadline",
            "pivot_that_waits_over_the_deadline_is_not_sent",
            "saga_that_is_done_again_gets_its_deadline_anew",
        ],
    ),
];

/// Whether a case passes. One that hangs does not.
async fn passes(case: &str, fixture: MemoryFixture) -> bool {
    let run = suite::find(case);
    let running = tokio::spawn(async move { run(&fixture).await });
    matches!(tokio::time::timeout(Duration::from_secs(20), running).await, Ok(Ok(())))
}

#[tokio::test]
async fn every_flaw_is_noticed_by_the_cases_named_for_it() {
    for (flaw, cases) in CONTROLS {
        for case in cases {
            assert!(
                passes(case, MemoryFixture::new()).await,
                "{case} fails on the sound store"
            );
            assert!(
                !passes(case, MemoryFixture::with_flaw(flaw)).await,
                "{case} does not notice {flaw:?}"
            );
        }
    }
}

#[test]
fn every_flaw_has_a_control() {
    for flaw in Flaw::ALL {
        assert!(
            CONTROLS
                .iter()
                .any(|(named, cases)| *named == flaw && !cases.is_empty()),
            "{flaw:?}"
        );
    }
}
