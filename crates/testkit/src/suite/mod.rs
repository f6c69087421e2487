//! One suite for every store. A case is an async function that gets a fresh fixture and panics when a promise is broken.
//!
//! The names are listed once, in `cases!`: from it come the named tests of each store ([`conformance!`](crate::conformance))
//! and the table that the negative controls look cases up in ([`find`]). A test checks that no case is left out of it.

use std::{future::Future, pin::Pin};

use crate::Fixture;

pub mod afterwards;
pub mod audit;
pub mod blocking;
pub mod bound;
pub mod claim;
pub mod configured;
pub mod counts;
pub mod crew;
pub mod deadlines;
pub mod dedupe;
pub mod enqueue;
pub mod explain;
pub mod invariants;
pub mod keys;
pub mod lease;
pub mod ledger;
pub mod lists;
pub mod operator;
pub mod participants;
pub mod passed;
pub mod producers;
pub mod races;
pub mod receipts;
pub mod relays;
pub mod replays;
pub mod runs;
pub mod sagas;
pub mod sessions;
pub mod settle;
pub mod soak;
pub mod tools;
pub mod waking;

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
                a_key_that_discard_freed_is_left_to_its_next_owner
            }
            configured {
                what_is_configured_holds_for_everybody
                what_is_configured_changes_no_message
                a_follow_up_is_held_to_it_too
                a_dedupe_lifetime_that_is_configured
                senseless_settings_are_refused
            }
            claim {
                a_claim_never_exceeds_its_batch
                a_senseless_claim_is_refused
                a_claim_stops_before_its_bytes_are_passed
                one_message_is_granted_whatever_its_size
                what_was_too_large_comes_with_a_later_claim
                the_oldest_come_first
                left_topics_are_left_alone
                only_the_named_namespaces_are_claimed
                no_namespace_hides_another
                a_tenants_claim_touches_no_other_tenant
                an_empty_poll_counts_nothing
                a_flood_does_not_delay_another_tenant
                tenants_share_a_batch
                an_unused_share_goes_to_the_others
                unused_shares_go_on_until_the_batch_is_full
                many_tenants_fill_a_claim
                claims_of_one_go_round_the_tenants
                claims_of_few_bytes_go_round_the_tenants
                no_claim_is_empty_while_something_is_free
                no_claim_is_empty_while_one_of_many_has_more
                lapsed_messages_hide_no_free_one
                left_topics_hide_no_free_one
                a_topic_that_some_leave_is_sent_by_those_who_can
                a_flood_that_falls_due_does_not_delay_another_tenant
                a_flood_of_a_left_topic_does_not_delay_another_tenant
                a_flood_that_falls_due_hides_nothing_from_a_scoped_claim
                a_tenants_claim_changes_no_record_of_another
                left_tenants_are_left_alone
                left_tenants_hide_no_free_one
                a_left_tenant_has_claims_of_its_own
                nothing_of_a_left_tenant_is_granted_whatever_it_waits_for
                claim_longer_than_half_its_lease_grants_nothing
                eight_claimers_never_share_a_message
                a_grant_is_visible_at_once
                every_claim_has_a_token_of_its_own
                what_went_back_is_not_skipped
                a_key_belongs_to_one_claim_at_a_time
            }
            bound {
                what_a_message_was_answered_is_told_again
                without_an_answer_the_receipt_is_told
                of_an_answer_that_is_too_large_its_digest_is_kept
                nothing_in_an_answer_blocks_its_record
                what_is_told_of_the_entry_is_never_sent
                of_a_message_without_one_nothing_is_asked
                names_that_no_entry_can_have_are_refused
                what_is_done_is_not_sent_again
                a_key_that_was_used_for_something_else_is_a_conflict
                a_message_that_finds_nothing_takes_the_entry
                also_when_a_holder_was_not_heard_of_again
                another_message_is_waited_for
                who_has_lost_his_lease_takes_nothing
                the_entry_of_another_tenant_has_nothing_to_do_with_it
                an_entry_that_a_message_has_is_not_past_its_time
                a_death_fails_the_entry_with_its_status
                a_retry_leaves_the_entry_to_the_message
                a_lease_that_runs_out_is_heard_of
                a_deliver_by_that_passes_is_heard_of
                a_death_of_a_message_that_had_nothing_leaves_nothing
                a_success_is_never_taken_back
                a_success_counts_after_a_failure
                a_holder_goes_on_after_a_message_died
                a_settlement_that_lost_its_lease_tells_the_entry_nothing
                each_of_a_batch_ends_its_own
                leaving_it_to_a_message_is_undone_with_the_transaction
                who_has_lost_it_leaves_it_to_nobody
                it_is_left_to_no_message_that_is_not_under_it
                nobody_waits_for_a_holder_who_works
                a_handlers_transaction_ends_the_entry_too
                a_replay_opens_the_entry_again
                a_replay_opens_nothing_that_is_not_the_messages
                what_operators_say_is_heard_of
                entries_are_listed_page_by_page
                entries_of_messages_are_as_the_rules_say
                of_many_messages_of_one_key_one_is_sent
            }
            ledger {
                the_first_goes_on
                the_second_is_told_how_long_the_first_may_take
                an_answer_is_told_again_byte_by_byte
                an_empty_answer_is_an_answer
                of_a_large_answer_the_digest_is_kept
                a_failure_for_good_is_told_again
                what_was_let_go_of_is_free_at_once
                what_was_let_go_of_is_free_for_something_else
                something_else_is_a_mismatch_while_it_is_in_flight
                something_else_is_a_mismatch_after_the_holders_time
                something_else_is_a_mismatch_after_success
                something_else_is_a_mismatch_after_failure
                something_else_is_a_mismatch_when_half_is_done
                tenants_and_scopes_have_nothing_to_do_with_each_other
                a_holder_who_is_not_heard_of_is_replaced
                a_late_end_changes_nothing
                a_late_end_does_not_overwrite_a_new_holder
                an_end_with_an_invented_token_changes_nothing
                an_end_of_nothing_changes_nothing
                an_end_that_was_not_heard_may_be_told_again
                an_end_is_never_changed
                the_first_answer_stands
                a_renewal_of_an_entry_moves_its_deadline
                a_renewal_after_the_deadline_is_refused
                a_renewal_after_the_end_is_refused
                retention_starts_with_the_end
                a_lease_outlives_a_short_retention
                bad_keys_are_refused_by_name
                bad_leases_are_refused_by_name
                whatever_a_failure_says_can_be_kept
                whatever_an_answer_holds_can_be_kept
                who_was_not_heard_of_is_not_forgotten_with_his_lease
                the_effect_and_its_record_commit_together
                the_effect_and_its_record_roll_back_together
                an_effect_that_is_done_again_is_told_to_roll_back
                a_step_that_is_done_again_is_told_to_roll_back
                a_renewal_in_a_transaction_counts_with_its_commit
                a_late_holder_is_told_in_time_to_roll_back
                nobody_waits_for_a_holders_transaction
                who_takes_over_goes_on_from_the_last_point
                a_point_that_was_rolled_back_was_not_reached
                a_late_holder_reaches_nothing
                cleaning_up_removes_what_is_past_its_retention_and_nothing_else
                cleaning_up_goes_in_steps
                it_answers_as_the_rules_do
                of_fifty_at_once_one_goes_on
                of_fifty_who_take_over_one_goes_on
                the_inbox_tells_the_first_time_from_the_others
                the_inbox_is_kept_as_long_as_somebody_may_deliver_again
                bad_consumers_are_refused_by_name
                what_was_rolled_back_was_not_the_first_time
            }
            afterwards {
                a_deadline_that_passes_while_the_pivot_is_in_doubt_still_counts
                a_pivot_that_is_given_back_after_the_deadline_is_not_sent
                what_was_answered_meanwhile_is_not_sent_again
                attempts_are_carried_over_a_pause
                a_pivot_that_was_done_after_all_is_not_passed_over
                a_pivot_that_was_done_on_the_way_back_waits_for_a_person
                what_was_done_after_it_was_resolved_waits_for_a_person
                a_held_compensation_gets_the_output_that_came_late
                a_compensation_that_was_tried_keeps_its_words
                a_compensation_that_nobody_is_at_gets_the_output_that_came_late
                what_a_person_says_was_answered_goes_to_a_compensation_that_failed
                what_was_known_when_it_was_resolved_is_no_news
                outputs_that_do_not_fit_together_can_be_made_smaller
                a_delay_is_not_put_off_by_a_pause
                the_dead_letter_of_a_held_saga_is_not_pruned
                numbers_are_kept_as_they_were
            }
            deadlines {
                first_step_that_waits_over_the_deadline_is_not_sent
                pivot_that_waits_over_the_deadline_is_not_sent
                steps_up_to_the_pivot_lapse_at_the_deadline
                deadline_does_not_move_when_a_decision_is_written_late
                step_that_ends_after_the_deadline_is_followed_by_no_first_send
                step_that_was_sent_before_the_deadline_is_not_called_skipped
                saga_that_is_resumed_after_its_deadline_turns_back
                idempotent_pivot_in_doubt_is_sent_again_after_the_deadline
                operator_retries_a_step_after_the_deadline
                saga_that_is_done_again_gets_its_deadline_anew
                pivot_in_doubt_is_asked_after_its_timeout_and_twice
                pivot_is_given_up_after_two_denials_and_not_called_skipped
                compensating_past_a_pivot_in_doubt_asks_first
                compensating_past_a_pivot_that_cannot_be_asked_waits_for_an_operator
                pivot_under_way_when_it_is_compensated_past_is_asked_about
                question_about_a_pivot_that_fails_for_good_waits_for_an_operator
            }
            replays {
                what_nothing_undoes_is_done_again_under_its_old_key
                a_doubt_of_before_keeps_no_saga_from_going_back
                what_nothing_undoes_is_not_given_something_else_under_its_old_key
                a_replay_tries_every_compensation_that_failed_again
                what_has_moved_since_it_was_found_is_left
            }
            participants {
                a_participant_does_a_step_once
                what_was_undone_before_it_came_is_refused
                of_a_step_and_its_undoing_at_once_the_order_is_known
                what_participants_remember_is_pruned
                what_was_undone_is_remembered_from_then_on
            }
            sagas {
                a_saga_that_starts_sends_its_first_step
                a_start_that_is_rolled_back_leaves_nothing
                a_key_is_started_once
                a_key_with_another_input_is_a_mismatch
                a_sagas_key_belongs_to_its_namespace_tenant_and_name
                of_fifty_starts_of_one_key_one_is_new
                a_version_has_one_content
                a_senseless_start_is_refused
                a_saga_goes_forward_to_its_end
                what_was_done_is_undone_in_reverse
                of_two_that_decide_at_once_one_is_stale
                one_that_is_stale_spoils_no_other
                a_settlement_of_a_saga_may_be_told_again
                who_has_lost_his_lease_moves_no_saga
                a_lease_that_runs_out_is_heard_of_by_its_saga
                what_must_not_be_sent_twice_is_held
                what_is_not_known_is_asked_for
                a_failed_step_is_tried_again_after_its_wait
                a_compensation_that_fails_for_good_is_held
                a_deadline_turns_it_back
                a_timer_goes_with_its_saga
                what_nobody_is_at_is_taken_back_by_a_pause
                what_somebody_is_at_is_not_taken_back
                a_change_of_what_has_changed_is_stale
                what_waits_for_its_time_is_taken_back_too
                what_a_relay_left_for_others_is_taken_back_too
                verbs_of_messages_do_not_apply_to_sagas
                verbs_of_sagas_are_in_the_audit_and_in_the_log
                what_was_undone_may_be_done_again
                a_late_answer_is_evidence
                sagas_are_listed_by_filter_and_page
                sagas_that_are_over_are_pruned
                whatever_is_answered_can_be_recorded
                an_output_that_is_too_large_holds_who_needs_it
                sixteen_workers_end_every_saga
                a_deadline_whose_lease_runs_out_is_not_lost
                what_goes_back_unsent_goes_round_again
                what_goes_back_unsent_is_not_sent_for_a_saga_that_is_stopped
                a_message_whose_saga_is_gone_does_no_harm
                what_is_nested_too_deep_is_not_kept
                what_was_doubted_is_undone_although_it_was_not_found
                what_is_configured_later_stops_no_saga
                a_handlers_transaction_does_not_end_a_step
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
                a_late_settlement_beside_those_of_a_newer_claim_ends_nothing
                an_expired_message_is_due_now
                death_on_the_last_attempt_ends_in_dead
                a_renewal_moves_the_deadline
                renewals_are_answered_in_order
                an_old_lease_beside_the_new_one_is_lost_alone
                who_renews_one_lease_renews_no_other
                a_lease_that_was_renewed_alone_runs_out_too
                a_pass_over_what_ran_out_reaches_its_end
                leases_of_one_claim_end_each_in_its_own_way
                a_senseless_renewal_is_refused
                expired_leases_are_paged_forward
                of_returning_worker_and_repairers_one_wins
                of_contradicting_reports_one_wins
                a_conflict_is_recorded
                a_conflict_over_a_missing_message_is_not_found
                a_lease_that_holds_is_no_conflict
                a_lease_that_ran_out_is_a_conflict
            }
            settle {
                a_delivery_is_done_with_its_receipt
                every_outcome_leaves_its_evidence
                a_failure_is_due_again_after_its_backoff
                the_last_failure_is_dead
                a_release_gives_the_count_back
                the_hundred_and_first_release_counts
                any_delay_of_a_release_can_be_recorded
                a_repeated_settlement_is_settled
                a_repetition_is_known_after_later_attempts
                another_outcome_under_an_old_token_is_refused
                a_repeated_release_is_refused_after_the_next_claim
                one_lost_lease_does_not_spoil_the_batch
                deliveries_are_settled_beside_a_lost_lease
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
                without_a_routes_budget_the_messages_own_stays
                settle_in_commits_with_the_handlers_change
                settle_in_rolls_back_with_the_handlers_change
                settle_in_refuses_a_lost_lease
                settle_in_is_not_told_twice
                attempts_are_gapless_and_epochs_rise
                a_destinations_wish_moves_the_due_time
                hostile_names_are_only_names
            }
            receipts {
                a_kept_receipt_stands_for_a_twin
                what_is_not_asked_for_is_not_kept
                a_delivery_without_a_receipt_is_kept_too
                a_receipt_stands_for_its_own_effect_only
                many_are_answered_in_their_order
                twins_in_flight_are_both_settled
                only_what_wins_keeps_its_receipt
                every_kind_of_message_keeps_its_receipt
                a_receipt_goes_with_its_message
                a_duplicate_prolongs_nothing
                asking_for_receipts_changes_nothing
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
                a_senseless_replay_is_refused
                only_an_operator_moves_a_terminal_message
                a_quarantined_message_waits_for_its_operator
                a_resolved_message_is_done_without_an_attempt
                a_cancelled_message_is_dead
                a_discarded_message_is_gone_but_audited
                prune_removes_only_what_ended_long_ago
                prune_removes_at_most_its_limit
                prune_until_it_is_done_leaves_nothing_behind
                prune_with_any_age_is_answered
                prune_of_at_most_nothing_is_refused
                a_dead_message_that_blocks_its_key_is_not_pruned
                a_list_shows_what_its_filter_says
                a_list_is_paged_without_gaps
                a_list_has_a_limit_of_its_own
                a_view_tells_the_message_whole
            }
            counts {
                an_empty_store_counts_nothing
                a_message_is_counted_where_it_stands
                messages_in_every_state_are_counted
                what_is_left_for_its_topic_is_ready
                leases_that_ran_out_are_counted
                blocked_keys_are_counted
                counts_tell_the_oldest_due
                more_than_the_cap_is_at_least_the_cap
                a_drain_never_shows_ready_rising_or_done_falling
                a_cap_that_bounds_nothing_is_refused
                the_oldest_due_may_be_behind_another
            }
            lists {
                a_list_by_state
                a_list_by_reason
                a_list_by_code
                a_list_by_time
                a_list_by_everything
                every_list_is_paged_without_gaps
                a_list_can_be_worked_off
            }
            relays {
                a_relay_tells_of_itself
                relays_are_listed_by_name
                a_silent_relay_is_not_live
                a_relay_that_leaves_is_not_live
                a_relay_is_forgotten_after_a_day
                a_senseless_heartbeat_is_refused
                a_pause_is_told_to_every_relay
                a_repeated_pause_changes_only_the_audit
                a_senseless_pause_is_refused
                any_reason_of_a_pause_can_be_recorded
                destinations_are_told
            }
            audit {
                the_audit_by_actor_and_action
                the_audit_is_paged_without_gaps
                the_audit_has_a_limit_of_its_own
                the_audit_of_destinations
                prune_leaves_dead_letters_unless_asked
                prune_of_dead_letters_removes_nothing_else
                prune_of_dead_letters_goes_on_until_there_is_no_more
                dry_run_of_a_prune_counts_and_changes_nothing
                prune_writes_one_audit_row_with_its_counts
                prune_that_removes_nothing_writes_no_audit
                prune_without_an_actor_is_refused
                resolve_keeps_note_and_receipt
            }
            explain {
                a_free_message
                a_missing_message
                a_delivered_message
                a_resolved_message
                an_expanded_message
                a_dead_message
                a_cancelled_message
                a_dead_message_that_blocks
                a_quarantined_message
                a_leased_message
                a_lease_that_ran_out
                a_lapsed_message
                behind_a_pending_head
                behind_a_leased_head
                behind_a_later_one_in_flight
                behind_a_dead_head
                not_behind_what_passes
                a_delayed_message
                a_backed_off_message
                no_relay
                no_route
                a_paused_destination
                a_child_and_its_own_destination
                an_open_breaker
                a_rate_limit
                a_tenant_limit
                several_causes
                asking_changes_nothing
            }
            keys {
                four_workers_send_every_key_in_order
                order_holds_over_failures
                a_backed_off_head_holds_its_key_and_nothing_else
                a_delayed_head_holds_its_key_and_nothing_else
                a_delay_in_the_middle_ends_the_run
                three_hundred_held_keys_hide_no_free_one
                five_hundred_held_tenants_hide_no_free_one
                ten_thousand_waiting_keys_hide_no_free_one
                keys_of_a_left_topic_hide_no_free_one
                a_waiting_head_that_is_taken_away_frees_its_key
                a_head_of_a_left_topic_holds_its_key
                a_waiting_head_past_its_deliver_by_frees_its_key
                lapsed_messages_of_a_key_hide_nobody
                many_keys_that_fall_due_are_all_claimed
                a_key_in_use_delays_no_other_key
                a_claim_serves_several_keys
                a_hot_key_does_not_starve_the_others
                keyed_and_unkeyed_share_a_batch
                a_left_topic_holds_only_its_key
                a_key_belongs_to_its_namespace_and_tenant
                a_key_is_any_text
                an_odd_key_is_found_by_its_name
                a_bulk_of_one_key_keeps_its_order
                a_lease_says_what_a_death_would_do
                a_replayed_message_goes_to_the_tail
                a_replay_of_a_keyed_message_raises_its_epoch
            }
            passed {
                what_failed_is_found_in_its_place
                what_was_let_go_is_found_in_its_place
                what_was_delayed_is_found_in_its_place
                what_was_left_is_found_in_its_place
                what_was_behind_is_found_in_its_place
                what_was_replayed_is_found_in_its_place
                a_key_that_is_held_for_long_is_held
                a_key_that_is_held_by_what_came_back_is_held
                a_key_that_is_held_by_what_was_behind_is_held
                a_head_that_came_back_is_found_among_very_many
            }
            runs {
                a_run_is_cut_by_the_batch
                a_run_is_cut_by_its_bytes
                bytes_are_weighed_over_keyed_and_unkeyed
                a_claim_holds_several_runs_in_order
                a_run_half_settled_still_holds_its_key
                a_failure_in_a_run_releases_the_rest
                a_release_in_a_run_releases_the_rest
                a_failure_releases_its_own_key_only
                a_batch_may_settle_the_whole_run
                a_refused_report_goes_back_with_its_run
                a_release_of_what_was_let_go_is_settled
                the_rest_of_a_run_is_never_counted
                a_rejected_head_that_passes_lets_its_run_go_on
                an_expired_run_loses_an_attempt_each
                a_stale_run_is_refused_after_the_takeover
                a_run_half_repaired_still_holds_its_key
                a_late_failure_releases_nothing
                an_expiry_lets_go_of_the_rest_of_its_run
                an_expiry_in_a_run_lets_go_of_what_is_later
                what_ran_out_as_well_is_not_let_go
                an_expiry_lets_go_of_what_is_wrongly_called_expired
                an_expiry_lets_go_of_its_own_key_only
                an_expired_head_that_passes_leaves_its_run
            }
            blocking {
                a_dead_head_that_blocks_releases_its_run
                an_expired_head_that_blocks_releases_its_run
                every_death_of_a_holder_blocks
                resolve_unblocks
                discard_unblocks
                cancel_unblocks
                a_blocker_is_replayed_in_its_place
                a_quarantined_blocker_is_replayed_in_its_place
                a_replayed_blocker_that_dies_blocks_again
                blockers_are_dealt_with_one_after_another
                a_quarantined_message_blocks_where_it_stands
                a_quarantined_message_that_passes_is_stepped_over
                a_cancelled_message_never_blocks
                a_cancelled_message_that_is_held_does_not_block_again
                a_resolved_message_is_stepped_over
                a_lapsed_message_that_passes_is_stepped_over
                a_lapsed_head_that_blocks_holds_its_key
                a_dead_message_that_passed_does_not_block_when_held
                a_route_makes_a_death_block
                a_route_lets_a_death_pass
                the_word_of_the_last_settlement_stands
            }
            producers {
                strict_producers_take_turns
                a_turn_ends_with_the_rollback
                the_turn_passes_on_from_producer_to_producer
                a_turn_belongs_to_its_key_alone
                two_bulks_of_the_same_keys_do_not_deadlock
                a_relaxed_late_commit_is_sent_when_it_is_there
                a_claim_waits_for_no_producer
                a_settlement_waits_for_no_producer
                follow_ups_take_no_turn
                a_replay_to_the_tail_takes_its_turn
            }
            sessions {
                of_two_that_waited_one_creates
                those_that_waited_are_told_by_the_commit
                commits_in_reverse_order_are_all_claimed
                a_late_commit_in_a_busy_line_is_found
                an_old_open_transaction_holds_back_nobody
                a_handler_keeps_its_lease_until_its_commit
                a_handler_that_rolls_back_late_has_lost_its_lease
                a_handler_past_the_deadline_has_lost_its_lease
                of_two_handlers_one_settles
                a_handler_lets_go_of_its_run_at_its_commit
                a_run_that_a_handler_is_in_is_not_repaired
                the_fate_of_a_handlers_commit_is_told
                fates_are_told_in_order
                a_batch_goes_on_beside_a_handler
            }
            races {
                of_settle_and_repair_one_wins
                the_same_report_at_once_is_written_once
                of_renew_and_repair_one_wins
                of_replays_of_a_keyed_message_one_wins
                of_replay_and_discard_one_wins
                of_claim_and_quarantine_one_wins
                of_claim_and_cancel_one_wins
                of_claims_of_one_key_one_wins
                of_a_failure_and_the_next_report_one_is_first
                of_an_expiry_and_the_next_report_one_is_first
                an_unblocked_key_is_claimed_once
                of_prune_and_replay_one_wins
                of_late_commits_and_claims_one_holds_the_key
                two_operators_replay_each_dead_message_once
                a_settlement_wins_against_quarantine
                a_settlement_wins_against_cancel
                of_pause_and_resume_one_is_last
            }
            waking {
                a_commit_wakes_who_sleeps
                who_was_rung_is_rung_for_until_it_is_granted_something
                who_is_granted_a_single_message_is_rung_for_the_next
                a_claim_that_says_it_saw_all_did
                a_sleep_that_is_given_up_loses_no_ring
                a_claim_does_not_deny_leases_that_ran_out
            }
            soak {
                producers_and_workers_with_failures
                producers_and_workers_with_lost_leases
                what_becomes_due_is_claimed_once
                no_state_is_seen_without_its_evidence
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
                $crate::Fixture::check(&fixture).await;
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
