//! Pruning in pieces: one run of [`Admin::prune`], until nothing old is left.

use posthouse_core::{Admin, Error, Prune, Pruned};

/// Calls [`Admin::prune`] until there is no more, one transaction each. The run has one audit row, which is right
/// after each call; `prune.audit` continues the row of an earlier run. `tell` hears the sum after each call, so that a caller that
/// is interrupted knows what was removed. Not for dry runs, which are one call.
pub async fn prune_all(admin: &dyn Admin, mut prune: Prune, mut tell: impl FnMut(&Pruned)) -> Result<Pruned, Error> {
    let mut sum = Pruned {
        audit: prune.audit,
        ..Pruned::default()
    };
    // Ends: each call but the last removes a full limit of something, or moves its mark.
    loop {
        sum.add(&admin.prune(&prune).await?);
        prune.audit = sum.audit;
        tell(&sum);
        if !sum.more {
            return Ok(sum);
        }
    }
}
