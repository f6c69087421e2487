//! Negative controls: a suite that cannot fail proves nothing. Each planted flaw must be noticed by the cases named here.

use posthouse_testkit::{Flaw, MemoryFixture, suite};
use std::time::Duration;

/// A flaw, and the cases that must fail because of it.
const CONTROLS: [(Flaw, &[&str]); 8] = [
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
        ],
    ),
    (
        Flaw::FenceByWorker,
        &["workers_of_one_name_are_told_apart", "a_foreign_token_is_refused"],
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
        ],
    ),
    (Flaw::CountBasedKeyLimit, &["a_key_belongs_to_one_claim_at_a_time"]),
    (
        Flaw::CursorPolling,
        &[
            "a_late_commit_is_not_skipped",
            "what_went_back_is_not_skipped",
            "a_failure_is_due_again_after_its_backoff",
            "a_replay_begins_a_new_generation",
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
        ],
    ),
    (
        Flaw::AttemptsAtSettle,
        &[
            "a_grant_is_visible_at_once",
            "death_on_the_last_attempt_ends_in_dead",
            "the_routes_budget_is_stamped",
            "attempts_are_gapless_and_epochs_rise",
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

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn temp_matrix() {
    for flaw in Flaw::ALL {
        let mut hit = Vec::new();
        for (area, case, run) in suite::CASES {
            if ["enqueue","dedupe","claim","lease","settle","operator"].contains(area) { continue; }
            let run = *run;
            let fixture = MemoryFixture::with_flaw(flaw);
            let running = tokio::spawn(async move { run(&fixture).await });
            let abort = running.abort_handle();
            let ok = matches!(tokio::time::timeout(Duration::from_secs(3), running).await, Ok(Ok(())));
            abort.abort();
            if !["enqueue","dedupe","claim","lease","settle","operator"].contains(area) {eprintln!("CASE {flaw:?} {area}::{case} {}", if ok {"passes"} else {"CAUGHT"});}
            if !ok { hit.push(format!("{area}::{case}")); }
        }
        eprintln!("MATRIX {flaw:?} {hit:#?}");
    }
}
