//! `posthouse audit`: who did what by hand.

use posthouse::{AnyStore, AuditEntry, AuditFilter};

use crate::{
    cli::Audit,
    exit::Failure,
    output::{Output, cut, visible},
    timeline::{DETAIL, audit_note},
};

/// `audit`
pub async fn run(args: &Audit, store: &str, out: &Output) -> Result<(), Failure> {
    let filter = AuditFilter {
        id: args.message,
        actor: args.actor.clone(),
        action: args.action.clone(),
        before: args.before,
        limit: args.limit,
    };
    let lines = AnyStore::open(store).await?.admin().audit(&filter).await?;
    if lines.is_empty() {
        out.note("Nothing is on record.");
    } else if out.json {
        lines.iter().try_for_each(|line| out.document(line))?;
    } else {
        let items = lines.iter().map(row).collect();
        out.data(&out.broken_table(&["AT", "WHAT", "BY", "ON", "NOTE"], items))?;
    }
    match lines.last() {
        Some(last) if lines.len() == filter.page_size() as usize => {
            let text = format!("There may be more: add --before {}", last.n);
            out.next_page(last.n, "limit", &text);
        }
        _ => {}
    }
    Ok(())
}

fn row(line: &AuditEntry) -> Vec<String> {
    let on = line.id.map(|id| id.to_string()).or_else(|| line.destination.clone());
    vec![
        line.at.to_string(),
        visible(&line.action),
        cut(&line.actor, 24),
        cut(&on.unwrap_or_default(), 48),
        cut(&audit_note(line), DETAIL),
    ]
}
