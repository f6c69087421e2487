//! `posthouse demo`: the whole story on one screen, with nothing made up.
//!
//! Every step calls the library as an application or a relay would, on a real file and in real time, reads back from the
//! store what it found, and fails if that is not what it tells.

mod cast;

use posthouse::{
    Admin, AuditFilter, Claimed, Error, Filter, Message, MessageId, MessageView, RetryPolicy, Settlement, State, Store,
    repair,
    sqlite::{Outbox, Sqlite},
};
use rusqlite::{Connection, TransactionBehavior::Immediate};
use serde::Serialize;
use serde_json::json;
use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use self::cast::{PATIENCE, Place, Warehouse, Worker, found};
use crate::{
    cli::Demo,
    exit::Failure,
    output::{Output, Paint},
    timeline::Timeline,
};

/// Short, so that nobody waits long for it to run out.
const LEASE: Duration = Duration::from_millis(300);

/// Runs the command.
pub async fn run(args: &Demo, out: &Output) -> Result<(), Failure> {
    let place = Place::new(args.keep.as_deref())?;
    let mut stage = Stage::open(&place.file, out.clone())?;
    stage.opening(&place)?;
    let order = stage.committed_together().await?;
    stage.rolled_back_together().await?;
    let stale = stage.claimed(order).await?;
    let held = stage.taken_over(order).await?;
    stage.stale_token_refused(order, &stale).await?;
    stage.delivered(order, held).await?;
    let failing = stage.retried_until_dead().await?;
    stage.replayed(failing).await?;
    stage.history(failing).await?;
    stage.closing(&place)
}

/// Everybody in the story, and how far it has been told.
struct Stage {
    out: Output,
    step: u32,
    /// The application's own connection to its own database.
    shop: Connection,
    outbox: Outbox,
    admin: Sqlite,
    alpha: Worker,
    beta: Worker,
    warehouse: Warehouse,
}

impl Stage {
    fn open(file: &Path, out: Output) -> Result<Self, Failure> {
        Sqlite::migrate(file)?;
        let shop = Connection::open(file)?;
        shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")?;
        Ok(Self {
            out,
            step: 0,
            shop,
            outbox: Outbox::default(),
            admin: Sqlite::open(file)?,
            alpha: Worker::start("alpha", file)?,
            beta: Worker::start("beta", file)?,
            warehouse: Warehouse {
                open: AtomicBool::new(true),
            },
        })
    }

    async fn committed_together(&mut self) -> Result<MessageId, Failure> {
        let tx = self.shop.transaction_with_behavior(Immediate)?;
        tx.execute("INSERT INTO orders (id, item) VALUES (1, 'lamp')", [])?;
        let id = self
            .outbox
            .enqueue(&tx, &Message::json("order.placed", &json!({ "order": 1 }))?)?
            .id();
        tx.commit()?;
        let count = self.count().await?;
        found(count == (1, 1), "one order and one message")?;
        let view = self.view(id, State::Pending).await?;
        let title = "An order and its message are committed in one transaction.";
        self.tell(title, &[format!("{}; order.placed is {}", counted(count), view.state)])?;
        Ok(id)
    }

    async fn rolled_back_together(&mut self) -> Result<(), Failure> {
        let tx = self.shop.transaction_with_behavior(Immediate)?;
        tx.execute("INSERT INTO orders (id, item) VALUES (2, 'desk')", [])?;
        self.outbox
            .enqueue(&tx, &Message::json("order.placed", &json!({ "order": 2 }))?)?;
        tx.rollback()?;
        let count = self.count().await?;
        found(count == (1, 1), "neither the second order nor its message")?;
        let title = "A second order is rolled back, and its message with it.";
        self.tell(title, &[format!("{}, as before", counted(count))])
    }

    async fn claimed(&mut self, id: MessageId) -> Result<Claimed, Failure> {
        let claimed = self.alpha.claim(LEASE).await?;
        found(claimed.lease.id == id, "the lease on order.placed")?;
        let view = self.view(id, State::Leased).await?;
        found(
            view.epoch == 1 && view.worker.as_deref() == Some("alpha"),
            "alpha's lease, epoch 1",
        )?;
        let title = format!("Worker alpha claims it, under a lease of {} ms.", LEASE.as_millis());
        self.tell(&title, &[held_by(&view)])?;
        Ok(claimed)
    }

    async fn taken_over(&mut self, id: MessageId) -> Result<Claimed, Failure> {
        // Alpha is silent: neither a renewal nor a settlement comes, and real time passes.
        let since = Instant::now();
        while repair(&self.beta.store, 10).await? == 0 {
            found(since.elapsed() < PATIENCE, "a lease that ran out")?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let claimed = self.beta.claim(PATIENCE * 2).await?;
        let view = self.view(id, State::Leased).await?;
        found(
            view.epoch == 2 && view.worker.as_deref() == Some("beta"),
            "beta's lease, epoch 2",
        )?;
        let lost = self.admin.attempts(id).await?;
        let lost = lost
            .first()
            .ok_or_else(|| Failure::new("the demo found no record of the lost attempt"))?;
        let record = format!(
            "on record: epoch {} of {} ended in {}",
            lost.epoch, lost.worker, lost.outcome
        );
        self.tell(
            "Alpha falls silent, as if dead. Its lease runs out, and worker beta takes over.",
            &[held_by(&view), record],
        )?;
        Ok(claimed)
    }

    async fn stale_token_refused(&mut self, id: MessageId, stale: &Claimed) -> Result<(), Failure> {
        let before = self.view(id, State::Leased).await?;
        let late = Settlement::delivered(&stale.lease, Some("alpha was here"));
        let verdicts = self.alpha.store.settle(&[late]).await?;
        found(verdicts.iter().all(|v| v.is_lost()), "the stale token refused")?;
        let nothing_changed = self.view(id, State::Leased).await? == before;
        found(nothing_changed, "nothing changed by the stale token")?;
        self.alpha.store.record_conflict(&stale.lease, self.alpha.name).await?;
        let audit = self.admin.audit(&AuditFilter::of(id)).await?;
        let conflict = audit
            .first()
            .ok_or_else(|| Failure::new("the demo found no record of the conflict"))?;
        let refused = "refused: the lease is lost; not a byte of the message changed".to_owned();
        let record = format!("on record: {}", conflict.detail);
        self.tell(
            "Alpha comes back and reports \"delivered\" with its old token.",
            &[refused, record],
        )
    }

    async fn delivered(&mut self, id: MessageId, held: Claimed) -> Result<(), Failure> {
        self.beta.send(&held, &self.warehouse, &RetryPolicy::default()).await?;
        let view = self.view(id, State::Done).await?;
        let receipt = self.admin.attempts(id).await?.pop().and_then(|attempt| attempt.receipt);
        let line = format!(
            "{} at epoch {}; the receipt: {:?}",
            view.state,
            view.epoch,
            receipt.unwrap_or_default()
        );
        self.tell("Beta sends it to the warehouse, which acknowledges.", &[line])
    }

    async fn retried_until_dead(&mut self) -> Result<MessageId, Failure> {
        let tx = self.shop.transaction_with_behavior(Immediate)?;
        let id = self
            .outbox
            .enqueue(&tx, &Message::json("order.packed", &json!({ "order": 1 }))?)?
            .id();
        tx.commit()?;
        self.warehouse.open.store(false, Ordering::Relaxed);
        let policy = RetryPolicy::table(3, [200, 400].map(Duration::from_millis));
        let mut lines = Vec::new();
        for attempt in 1..=policy.max_attempts {
            let claimed = self.beta.claim(PATIENCE).await?;
            self.beta.send(&claimed, &self.warehouse, &policy).await?;
            let view = self
                .view(
                    id,
                    if attempt < policy.max_attempts {
                        State::Pending
                    } else {
                        State::Dead
                    },
                )
                .await?;
            let code = view.last_code.as_deref().unwrap_or("-");
            lines.push(match view.reason {
                None => format!(
                    "attempt {attempt}: {code}; again after {} ms",
                    policy.wait(attempt, 0.5).as_millis()
                ),
                Some(reason) => format!(
                    "attempt {attempt}: {code}; {} ({reason}), and left alone from now on",
                    view.state
                ),
            });
        }
        self.tell(
            "Another message. The warehouse is closed; the budget is 3 attempts.",
            &lines,
        )?;
        Ok(id)
    }

    async fn replayed(&mut self, id: MessageId) -> Result<(), Failure> {
        self.admin.replay(id, "operator", "open again", None).await?;
        self.warehouse.open.store(true, Ordering::Relaxed);
        let claimed = self.beta.claim(PATIENCE).await?;
        self.beta
            .send(&claimed, &self.warehouse, &RetryPolicy::default())
            .await?;
        let view = self.view(id, State::Done).await?;
        let line = format!(
            "{} at epoch {}, with the same id and its whole history:",
            view.state, view.epoch
        );
        self.tell("The warehouse opens, an operator replays the dead message.", &[line])
    }

    async fn history(&self, id: MessageId) -> Result<(), Failure> {
        let timeline = Timeline::of(&self.admin, id).await?;
        found(timeline.attempts.len() == 4, "four attempts on record")?;
        if self.out.json {
            return self
                .out
                .document(&json!({ "attempts": timeline.attempts, "audit": timeline.audit }));
        }
        self.out.data(&format!("\n{}", timeline.table(&self.out)))
    }

    fn opening(&self, place: &Place) -> Result<(), Failure> {
        if self.out.json {
            return self.out.document(&json!({ "file": place.file.display().to_string() }));
        }
        let fate = if place.folder.is_some() {
            "removed at the end"
        } else {
            "kept"
        };
        let title = self.out.paint(Paint::Bold, "An outbox, on a real SQLite file");
        self.out
            .data(&format!("{title} ({}, {fate})\n\n", place.file.display()))
    }

    fn closing(&self, place: &Place) -> Result<(), Failure> {
        if self.out.json {
            return Ok(());
        }
        let say = |lead: &str, command: &str| format!("{lead}  {}\n", self.out.paint(Paint::Cyan, command));
        let look = |file: &str| {
            format!(
                "posthouse --store {} messages list",
                shell_word(&format!("sqlite://{file}"))
            )
        };
        let text = match place.folder {
            Some(_) => say("Keep it:   ", "posthouse demo --keep demo.db") + &say("Look at it:", &look("demo.db")),
            None => say("Look at it:", &look(&place.file.display().to_string())),
        };
        self.out.data(&format!("\n{text}"))
    }

    /// Tells what was done, and what was found.
    fn tell(&mut self, title: &str, lines: &[String]) -> Result<(), Failure> {
        self.step += 1;
        if self.out.json {
            return self.out.document(&Told {
                step: self.step,
                did: title,
                found: lines,
            });
        }
        let mark = self.out.paint(Paint::Green, "->");
        let lines: Vec<_> = lines.iter().map(|line| format!("   {mark} {line}\n")).collect();
        let title = self.out.paint(Paint::Bold, &format!("{}  {title}", self.step));
        self.out.data(&format!("{title}\n{}", lines.concat()))
    }

    /// Orders and messages in the file.
    async fn count(&self) -> Result<(usize, usize), Failure> {
        let orders: i64 = self
            .shop
            .query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?;
        let messages = self.admin.list(&Filter::default()).await?.messages.len();
        Ok((usize::try_from(orders).unwrap_or(0), messages))
    }

    /// The message as the store has it, which must be in this state.
    async fn view(&self, id: MessageId, state: State) -> Result<MessageView, Failure> {
        let view = self.admin.find(id).await?.ok_or(Error::NotFound(id))?;
        found(view.state == state, &format!("the message {state}"))?;
        Ok(view)
    }
}

/// A step, for programs.
#[derive(Serialize)]
struct Told<'a> {
    step: u32,
    did: &'a str,
    found: &'a [String],
}

fn counted((orders, messages): (usize, usize)) -> String {
    format!("{orders} order, {messages} message in the file")
}

fn held_by(view: &MessageView) -> String {
    let worker = view.worker.as_deref().unwrap_or("-");
    format!(
        "{} by {worker}, epoch {}, attempt {} of {}",
        view.state, view.epoch, view.attempts, view.max_attempts
    )
}

/// As it must be typed into a shell.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@%+=,~".contains(c);
    if text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::new(format!("the demo's own table: {error}"))
    }
}
