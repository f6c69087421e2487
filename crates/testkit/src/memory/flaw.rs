//! Mistakes that stores have really made, to be planted in the reference: the suite must notice each of them.

/// One planted mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// The token is not checked: whoever says it holds the message is believed.
    NoFence,
    /// The worker's name is checked in place of the token.
    FenceByWorker,
    /// An expiry is settled although the lease was renewed, settled or granted to somebody else.
    RepairWithoutGuard,
    /// The outcome is committed before the follow-ups, and stays when one of them is refused.
    SettleInTwoTransactions,
    /// A key is kept to one holder only within one claim: leases of other claims are not seen.
    CountBasedKeyLimit,
    /// Claims read on from the highest number claimed so far.
    CursorPolling,
    /// A dedupe key is looked up among the committed, unfinished messages, not kept in a table of its own.
    DedupeByLock,
    /// An attempt is counted when it is reported, not when the lease is granted.
    AttemptsAtSettle,
    /// A claim grants leases that are over before it commits.
    LateGrants,
    /// A message that is not due yet is stepped over, and the later ones of its key overtake it.
    HeadDoesNotHold,
    /// When a message of a run goes back to its key, its holder keeps the rest of the run.
    RunGoesOn,
    /// When the lease of a message runs out and it goes back to its key, its holder keeps the later ones that it renewed.
    ExpiryKeepsRun,
    /// Producers of a key do not take turns: a number drawn early may be committed late.
    NoTurns,
    /// A relay that has left, or has been silent for too long, is still told as live.
    RelaysNeverGo,
    /// The second who pauses a destination is told as the one who did.
    LastPauseStands,
    /// Who is in flight is not seen by explain: only the first of a key is told.
    FlightUnseen,
    /// The receipt of a message that was pruned still stands for others.
    ReceiptsOutlive,
    /// A prune of done messages removes dead letters too.
    PruneTakesDead,
    /// Each call of a prune writes another audit row.
    AuditRowForEachPrune,
    /// A saga is written over, whoever has changed it meanwhile.
    SagaWithoutVersion,
    /// A relay is not told when a step of a saga lapses: the deadline is a timer message alone.
    StepsNeverLapse,
}

impl Flaw {
    /// Every flaw.
    pub const ALL: [Self; 21] = [
        Self::NoFence,
        Self::FenceByWorker,
        Self::RepairWithoutGuard,
        Self::SettleInTwoTransactions,
        Self::CountBasedKeyLimit,
        Self::CursorPolling,
        Self::DedupeByLock,
        Self::AttemptsAtSettle,
        Self::LateGrants,
        Self::HeadDoesNotHold,
        Self::RunGoesOn,
        Self::ExpiryKeepsRun,
        Self::NoTurns,
        Self::RelaysNeverGo,
        Self::LastPauseStands,
        Self::FlightUnseen,
        Self::ReceiptsOutlive,
        Self::PruneTakesDead,
        Self::AuditRowForEachPrune,
        Self::SagaWithoutVersion,
        Self::StepsNeverLapse,
    ];
}
