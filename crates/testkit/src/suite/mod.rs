//! One suite for every store. A case is an async function that gets a fresh fixture and panics when a promise is broken.
//!
//! The names are listed once, in `cases!`: from it come the named tests of each store ([`conformance!`](crate::conformance))
//! and the table that the negative controls look cases up in ([`find`]). A test checks that no case is left out of it.

use std::{future::Future, pin::Pin};

use crate::Fixture;

pub mod claim;
pub mod dedupe;
pub mod enqueue;
pub mod lease;
pub mod operator;
pub mod settle;
pub mod tools;

/// A case, ready to run on a fixture.
pub type Run = for<'a> fn(&'a dyn Fixture) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Calls `$then!` with every area and its cases.
#[doc(hidden)]
#[macro_export]
macro_rules! __cases {
    ($then:path, $($arg:tt)*) => {
        $then! { [$($arg)*]
            enqueue {
                a_committed_message_is_claimed_once
                a_rolled_back_message_never_existed
                an_open_transactions_message_is_not_claimed
                a_late_commit_is_not_skipped
                what_is_delivered_is_what_was_enqueued
                payloads_pass_up_to_the_limit
                an_invalid_message_is_refused_before_any_traffic
                an_id_enqueued_twice_is_there_once
                an_id_with_other_content_is_a_conflict
                messages_without_an_id_get_different_ones
                a_bulk_is_answered_and_claimed_in_its_order
                a_bulk_knows_its_own_duplicates
                one_refused_message_refuses_the_bulk
                an_empty_bulk_does_nothing
                a_delayed_message_waits_for_its_time
                a_message_past_its_deliver_by_is_never_sent
                a_claim_tells_the_time_left_to_deliver
                the_attempt_budget_is_stamped
            }
            dedupe {
                a_repeated_enqueue_answers_the_first
                a_key_with_other_content_is_a_conflict
                the_content_type_is_part_of_the_content
                keep_answers_the_existing_message
                a_key_belongs_to_its_namespace_tenant_and_topic
                a_rolled_back_first_frees_its_key
                a_second_enqueue_waits_for_the_firsts_commit
                a_second_enqueue_takes_over_after_the_firsts_rollback
                fifty_sessions_on_one_key_make_one_message
                the_key_is_taken_while_the_message_lives
                the_lifetime_starts_when_the_message_ends
                a_replay_stops_the_lifetime
                the_key_outlives_the_body
                prune_removes_keys_whose_lifetime_is_over
                discard_frees_the_key
            }
            claim {
                a_claim_never_exceeds_its_batch
                a_senseless_claim_is_refused
                a_claim_stops_before_its_bytes_are_passed
                one_message_is_granted_whatever_its_size
                the_oldest_come_first
                left_topics_are_left_alone
                only_the_named_namespaces_are_claimed
                a_tenants_claim_touches_no_other_tenant
                an_empty_poll_counts_nothing
                a_flood_does_not_delay_another_tenant
                tenants_share_a_batch
                an_unused_share_goes_to_the_others
                claims_of_one_go_round_the_tenants
                eight_claimers_never_share_a_message
                a_grant_is_visible_at_once
                every_claim_has_a_token_of_its_own
                what_went_back_is_not_skipped
                a_key_belongs_to_one_claim_at_a_time
            }
            lease {
                stale_token_is_refused_by_settle
                stale_token_is_refused_by_renew
                stale_token_is_refused_by_release
                stale_token_is_refused_by_expiry
                an_expired_lease_cannot_be_used
                the_deadline_belongs_to_the_repairer
                a_renewed_lease_is_not_expired
                a_settled_lease_is_not_expired
                workers_of_one_name_are_told_apart
                a_foreign_token_is_refused
                a_pending_message_has_no_holder
                a_takeover_records_the_lost_attempt_and_raises_the_epoch
                an_expired_message_is_due_now
                death_on_the_last_attempt_ends_in_dead
                a_renewal_moves_the_deadline
                renewals_are_answered_in_order
                a_senseless_renewal_is_refused
                expired_leases_are_paged_forward
                of_returning_worker_and_repairers_one_wins
                of_contradicting_reports_one_wins
                a_conflict_is_recorded
                a_conflict_over_a_missing_message_is_not_found
            }
            settle {
                a_delivery_is_done_with_its_receipt
                every_outcome_leaves_its_evidence
                a_failure_is_due_again_after_its_backoff
                the_last_failure_is_dead
                a_release_gives_the_count_back
                the_hundred_and_first_release_counts
                a_repeated_settlement_is_settled
                a_repetition_is_known_after_later_attempts
                another_outcome_under_an_old_token_is_refused
                a_repeated_release_is_refused_after_the_next_claim
                one_lost_lease_does_not_spoil_the_batch
                a_large_batch_is_settled_whole
                the_same_lease_twice_in_a_batch_is_settled_once
                follow_ups_come_with_the_settlement
                follow_ups_of_a_lost_lease_are_not_enqueued
                a_repetition_does_not_repeat_its_follow_ups
                a_refused_follow_up_leaves_its_lease_untouched
                a_poisoned_follow_up_spoils_no_other
                a_duplicate_follow_up_is_no_error
                any_error_text_can_be_recorded
                any_receipt_can_be_recorded
                the_routes_budget_is_stamped
                settle_in_commits_with_the_handlers_change
                settle_in_rolls_back_with_the_handlers_change
                settle_in_refuses_a_lost_lease
                attempts_are_gapless_and_epochs_rise
                a_destinations_wish_moves_the_due_time
                hostile_names_are_only_names
            }
            operator {
                replay_applies_only_to_dead_and_quarantined
                quarantine_applies_only_to_pending_and_dead
                cancel_applies_only_to_pending_and_quarantined
                resolve_applies_to_all_but_leased_and_done
                discard_applies_only_to_dead_and_quarantined
                a_missing_message_is_not_found
                an_operator_without_a_name_is_refused
                every_change_is_in_the_audit
                any_operator_text_can_be_recorded
                a_replay_begins_a_new_generation
                of_concurrent_replays_one_wins
                a_lease_from_before_the_replay_is_refused
                a_replay_drops_a_deliver_by_that_has_passed
                a_replay_may_set_a_new_deliver_by
                only_an_operator_moves_a_terminal_message
                a_quarantined_message_waits_for_its_operator
                a_resolved_message_is_done_without_an_attempt
                a_cancelled_message_is_dead
                a_discarded_message_is_gone_but_audited
                prune_removes_only_what_ended_long_ago
                prune_removes_at_most_its_limit
                a_dead_message_that_blocks_its_key_is_not_pruned
                a_list_shows_what_its_filter_says
                a_list_is_paged_without_gaps
                a_list_has_a_limit_of_its_own
                a_view_tells_the_message_whole
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ([$fixture:expr] $($area:ident { $($case:ident)* })*) => {
        $(mod $area {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let fixture = $fixture().await;
                $crate::suite::$area::$case(&fixture).await;
            })*
        })*
    };
}

/// Makes one named test for each case. `$fixture` is the path of an async function that makes a fresh [`Fixture`].
#[macro_export]
macro_rules! conformance {
    ($fixture:expr) => {
        $crate::__cases!($crate::__tests, $fixture);
    };
}

macro_rules! table {
    ([] $($area:ident { $($case:ident)* })*) => {
        /// Every case: area, name and function.
        pub const CASES: &[(&str, &str, Run)] = &[
            $($((stringify!($area), stringify!($case), |fixture| Box::pin($area::$case(fixture))),)*)*
        ];
    };
}
__cases!(table,);

/// A case by its name.
pub fn find(name: &str) -> Run {
    CASES
        .iter()
        .find(|(_, case, _)| *case == name)
        .unwrap_or_else(|| panic!("there is no case {name}"))
        .2
}
