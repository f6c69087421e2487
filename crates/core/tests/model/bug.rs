//! The mistakes that a model must be able to find, or it proves nothing by finding none.

/// A mistake planted in the store or in its workers. Each is one that real outboxes have made, or that a reading of our
/// own rules would allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A settlement is written whoever holds the message.
    NoFence,
    /// The fence is the worker's name, which a restarted worker shares with its past.
    FenceByName,
    /// The fence is the token alone: a lease lives on after its deadline until somebody repairs it.
    FenceWithoutDeadline,
    /// The repairer writes what it decided from what it saw, without looking again.
    RepairWithoutGuard,
    /// The rest of a run is released together with the message that failed, even what had run out.
    RestFreedAfterDeadline,
    /// A message whose lease ran out goes back alone: the later ones of its run, which were renewed, stay with their holder.
    ExpiryKeepsTheRest,
    /// A renewal brings a lease back that had run out.
    RenewAfterDeadline,
    /// A lease is granted again one tick before it ends.
    GrantBeforeDeadline,
    /// A lease counts when it is settled, so one whose worker dies never counts.
    CountAtSettle,
    /// A release keeps the count that it should give back.
    ReleaseKeepsCount,
    /// A message that was tried before is granted under its old epoch.
    EpochKeptAtTakeover,
    /// A replay starts the epochs anew.
    EpochResetAtReplay,
    /// An exhausted message is claimed once more.
    DeadIsClaimed,
    /// A replay takes whatever it finds.
    ReplayOfAnyState,
    /// A quarantine takes a message out of its worker's hands.
    QuarantineOfLeased,
    /// The evidence is written after the state, and a crash comes between.
    EvidenceApart,
    /// The message leaves its old table and enters its new one in two transactions, and a crash comes between.
    MoveApart,
    /// A repeated settlement is written again.
    RepeatWritten,
    /// A repeated settlement is called lost.
    RepeatRefused,
    /// A key allows one lease at a time, and whoever is due takes it.
    KeyByCount,
    /// A replayed message of a key goes back to its old place.
    ReplayInOldPlace,
    /// A cancelled message that is then quarantined blocks its key again, as if it had never let go.
    CancelledBlocksAgain,
    /// The place in the line is drawn before the producers' turn.
    TurnAfterDraw,
    /// A poll goes on from the last number it saw.
    CursorPolling,
    /// A message is seen before its transaction commits.
    DirtyRead,
    /// A worker sends the next of a key while the one before is still in the air.
    SendAhead,
    /// A worker that lost the lease of one message goes on with the next of its key, whose lease it still has.
    GoesOnAfterLoss,
    /// A worker releases what it has begun to send.
    ReleaseAfterSend,
    /// A worker that did not hear the answer to its settlement sends again instead of settling again.
    SendTwice,
}
