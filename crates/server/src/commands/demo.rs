//! `posthouse demo`: the whole story on a screen or two, with nothing made up.
//!
//! The shop, its orders and its transactions are here, and so is the warehouse, which receives over HTTP. Between them are relays as
//! anybody runs them: processes of this very program, one of which is killed. Each step reads back from the store and from the
//! warehouse what it found, and fails if that is not what it tells.

mod cast;
mod partners;
mod warehouse;

use posthouse::{
    Admin, Error, Filter, Message, MessageId, MessageView, SagaId, State,
    saga::{self, SagaState, SagaView, drive},
    sqlite::{Outbox, Sqlite},
};
use rusqlite::{Connection, TransactionBehavior::Immediate};
use serde::Serialize;
use serde_json::json;
use std::time::{Duration, Instant};

use self::{
    cast::{PATIENCE, Place, RelayProcess, found},
    partners::{DECLINED, Partners},
    warehouse::{BUSY, SILENT, STRANGE, Visit, Warehouse},
};
use crate::{
    cli::Demo,
    exit::Failure,
    output::{Output, Paint, WIDTH, broken},
    timeline::Timeline,
};

/// Short, so that nobody waits long for it to run out.
const LEASE: Duration = Duration::from_secs(3);

/// Runs the command.
pub async fn run(args: &Demo, out: &Output) -> Result<(), Failure> {
    // Goes last: what runs in it ends before its folder does.
    let place = Place::new(args.keep.as_deref())?;
    let mut stage = Stage::open(&place, out.clone()).await?;
    stage.opening()?;
    let first = stage.committed_together().await?;
    stage.rolled_back_together().await?;
    stage.delivered(first).await?;
    stage.retried_in_order().await?;
    let hanging = stage.killed().await?;
    stage.taken_over(hanging).await?;
    let refused = stage.refused().await?;
    stage.replayed(refused).await?;
    stage.all_or_nothing().await?;
    stage.summed_up().await?;
    stage.history(hanging).await?;
    stage.closing()
}

/// Everybody in the story, and how far it has been told.
struct Stage<'p> {
    out: Output,
    place: &'p Place,
    step: u32,
    /// The application's own connection to its own database.
    shop: Connection,
    outbox: Outbox,
    admin: Sqlite,
    warehouse: Warehouse,
    partners: Partners,
    secret: String,
    relay: Option<RelayProcess>,
}

impl<'p> Stage<'p> {
    async fn open(place: &'p Place, out: Output) -> Result<Self, Failure> {
        Sqlite::migrate(&place.file)?;
        let shop = Connection::open(&place.file)?;
        // A relay that is just writing is waited for.
        shop.busy_timeout(PATIENCE)?;
        shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")?;
        // Digits of a hexadecimal number are base64 too, here of 48 bytes.
        let secret = format!(
            "whsec_{}{}",
            uuid::Uuid::new_v4().simple(),
            uuid::Uuid::new_v4().simple()
        );
        Ok(Self {
            out,
            place,
            step: 0,
            shop,
            outbox: Outbox::default(),
            admin: Sqlite::open(&place.file)?,
            warehouse: Warehouse::open(&secret).await?,
            partners: Partners::open().await?,
            secret,
            relay: None,
        })
    }

    async fn committed_together(&mut self) -> Result<MessageId, Failure> {
        let id = self.order(1, "lamp", &[message("order.placed", 1)?])?[0];
        let count = self.count().await?;
        found(count == (1, 1), "one order and one message")?;
        let view = self.view(id, State::Pending).await?;
        let title = "The shop commits an order and its message in one transaction.";
        let line = format!("{}; {} is {}", counted(count), view.topic, view.state);
        self.tell(title, &[line])?;
        Ok(id)
    }

    async fn rolled_back_together(&mut self) -> Result<(), Failure> {
        let tx = self.shop.transaction_with_behavior(Immediate)?;
        tx.execute("INSERT INTO orders (id, item) VALUES (2, 'desk')", [])?;
        self.outbox.enqueue(&tx, &message("order.placed", 2)?)?;
        tx.rollback()?;
        let count = self.count().await?;
        found(count == (1, 1), "neither the second order nor its message")?;
        let title = "It rolls a second order back, and its message with it.";
        self.tell(title, &[format!("{}, as before", counted(count))])
    }

    async fn delivered(&mut self, id: MessageId) -> Result<(), Failure> {
        let process = self.start("alpha")?;
        let view = self.becomes(id, State::Done).await?;
        let visits = self.warehouse.visits(id);
        found(visits.len() == 1, "one genuine request at the warehouse")?;
        let lines = [
            format!("the warehouse: signature genuine, epoch {}", visits[0].epoch),
            format!(
                "{} at epoch {}; the receipt: {:?}",
                view.state,
                view.epoch,
                self.receipt(id).await?
            ),
        ];
        let title = format!("Relay alpha starts as process {process}, and sends it to the warehouse as a webhook.");
        self.tell(&title, &lines)
    }

    async fn retried_in_order(&mut self) -> Result<(), Failure> {
        let messages =
            [message("order.placed", BUSY)?, message("order.paid", BUSY)?].map(|m| m.order_key("customer-7"));
        let ids = self.order(BUSY, "sofa", &messages)?;
        self.becomes(ids[1], State::Done).await?;
        self.becomes(ids[0], State::Done).await?;
        let (placed, paid) = (self.warehouse.visits(ids[0]), self.warehouse.visits(ids[1]));
        let answers: Vec<_> = placed.iter().map(|visit| visit.answer).collect();
        found(
            answers == [Some(503), Some(503), Some(200)],
            "two refusals and an acceptance",
        )?;
        let in_order = paid.len() == 1 && placed.iter().all(|visit| visit.at < paid[0].at);
        found(in_order, "the second message behind the first")?;
        let mut lines = Vec::new();
        let mut before: Option<&Visit> = None;
        for visit in &placed {
            let after = before.map_or_else(String::new, |b| {
                format!(", after {} ms", visit.at.duration_since(b.at).as_millis())
            });
            lines.push(format!("{}: {}{after}", visit.topic, visit.answer.unwrap_or(0)));
            before = Some(visit);
        }
        lines.push(format!(
            "{}: {}; of the same order key, so it waited behind the first",
            paid[0].topic,
            paid[0].answer.unwrap_or(0)
        ));
        let title = "Two messages of one customer. The warehouse is busy, and answers the first with 503, twice.";
        self.tell(title, &lines)
    }

    async fn killed(&mut self) -> Result<MessageId, Failure> {
        let id = self.order(SILENT, "piano", &[message("order.placed", SILENT)?])?[0];
        self.wait("the order at the warehouse", async |stage: &mut Self| {
            Ok(stage.warehouse.visits(id).pop())
        })
        .await?;
        let relay = self
            .relay
            .take()
            .ok_or_else(|| Failure::new("the demo has lost its relay"))?;
        relay.kill()?;
        let view = self.view(id, State::Leased).await?;
        found(
            view.worker.as_deref() == Some("alpha") && view.epoch == 1,
            "alpha's lease, epoch 1",
        )?;
        let line = format!(
            "{} by alpha, epoch {}, attempt {} of {}; alpha can neither renew nor settle it",
            view.state, view.epoch, view.attempts, view.max_attempts
        );
        let title = "The warehouse takes an order in, but does not answer. Alpha is killed meanwhile (SIGKILL).";
        self.tell(title, &[line])?;
        Ok(id)
    }

    async fn taken_over(&mut self, id: MessageId) -> Result<(), Failure> {
        let process = self.start("beta")?;
        let view = self.becomes(id, State::Done).await?;
        let visits = self.warehouse.visits(id);
        let [first, second] = visits.as_slice() else {
            return Err(Failure::new(format!(
                "the demo found {} requests in place of two",
                visits.len()
            )));
        };
        found(
            second.duplicate && second.epoch > first.epoch,
            "a duplicate with a higher epoch",
        )?;
        let lines = [
            format!(
                "the warehouse: the same webhook-id, now with epoch {}: known, and not done twice",
                second.epoch
            ),
            format!(
                "{} at epoch {}; the receipt: {:?}",
                view.state,
                view.epoch,
                self.receipt(id).await?
            ),
        ];
        let title = format!(
            "Relay beta starts as process {process}. Alpha's lease of {} s runs out, and beta takes over.",
            LEASE.as_secs()
        );
        self.tell(&title, &lines)
    }

    async fn refused(&mut self) -> Result<MessageId, Failure> {
        let id = self.order(STRANGE, "unicorn", &[message("order.placed", STRANGE)?])?[0];
        let view = self.becomes(id, State::Dead).await?;
        let reason = view.reason.map_or("-", |reason| reason.as_str());
        let code = view.last_code.as_deref().unwrap_or("-");
        let mut lines = vec![format!("{} ({reason}) after {code}", view.state)];
        let causes = self.admin.explain(id).await?;
        lines.extend(causes.iter().map(|cause| format!("explain: {cause}")));
        self.tell(
            "The warehouse refuses an order with 422. An operator asks why it is not delivered.",
            &lines,
        )?;
        Ok(id)
    }

    async fn replayed(&mut self, id: MessageId) -> Result<(), Failure> {
        self.warehouse.repair();
        self.admin.replay(id, "operator", "the item exists now", None).await?;
        let view = self.becomes(id, State::Done).await?;
        found(
            (view.generation, view.epoch) == (2, 2),
            "a second life of the same message",
        )?;
        let line = format!(
            "{} at epoch {}, under the same id; the receipt: {:?}",
            view.state,
            view.epoch,
            self.receipt(id).await?
        );
        self.tell(
            "The warehouse is repaired, and the operator replays the dead message.",
            &[line],
        )
    }

    async fn all_or_nothing(&mut self) -> Result<(), Failure> {
        let fulfil = saga::from_toml(&self.partners.definition())?;
        let mut lines = Vec::new();
        let ends = [
            (DECLINED - 1, "globe", SagaState::Completed),
            (DECLINED, "yacht", SagaState::Compensated),
        ];
        for (order, item, end) in ends {
            let start = saga::start(&fulfil, format!("order-{order}"), &json!({ "order": order }))?;
            let tx = self.shop.transaction_with_behavior(Immediate)?;
            tx.execute("INSERT INTO orders (id, item) VALUES (?1, ?2)", (order as i64, item))?;
            let id = self.outbox.start(&tx, start)?.id();
            tx.commit()?;
            let view = self.ends(id, end).await?;
            let heard = self.partners.heard(order).join(", ");
            lines.push(format!(
                "fulfil/{}: {}; asked for {heard}",
                view.row.key, view.row.state
            ));
        }
        let standing = self.partners.standing();
        found(
            standing == (vec![DECLINED - 1], vec![DECLINED - 1]),
            "one order reserved and charged, and nothing of the other",
        )?;
        let title = "Two orders as sagas: reserve the item, then charge the card, or neither. One card is declined.";
        self.tell(title, &lines)
    }

    async fn summed_up(&mut self) -> Result<(), Failure> {
        if let Some(relay) = self.relay.take() {
            relay.stop().await?;
        }
        let (orders, messages) = self.count().await?;
        let done = Filter {
            state: Some(State::Done),
            ..Filter::default()
        };
        let done = self.messages(&done).await?;
        let taken_in = self.warehouse.taken_in();
        found(
            (messages, taken_in) == (done, done),
            "every message delivered and taken in once",
        )?;
        let line =
            format!("{orders} orders, {messages} messages: {done} done; the warehouse took in {taken_in}, each once");
        self.tell(
            "Beta is stopped. What was committed was delivered, and the evidence is in the file.",
            &[line],
        )
    }

    async fn history(&self, id: MessageId) -> Result<(), Failure> {
        let timeline = Timeline::of(&self.admin, id).await?;
        found(timeline.attempts.len() == 2, "two attempts on record")?;
        if self.out.json {
            return self
                .out
                .document(&json!({ "id": id, "attempts": timeline.attempts, "audit": timeline.audit }));
        }
        let title = self.out.paint(Paint::Bold, "The message that was taken over:");
        self.out.data(&format!("\n{title}\n{}", timeline.table(&self.out)))
    }

    fn opening(&self) -> Result<(), Failure> {
        let file = self.place.file.display().to_string();
        if self.out.json {
            return self.out.document(&json!({ "file": file }));
        }
        let fate = if self.place.kept { "kept" } else { "removed at the end" };
        let title = self.out.paint(Paint::Bold, "An outbox, on a real SQLite file");
        self.out.data(&format!("{title} ({file}, {fate})\n\n"))
    }

    fn closing(&self) -> Result<(), Failure> {
        if self.out.json {
            return Ok(());
        }
        let say = |lead: &str, command: &str| format!("{lead}  {}\n", self.out.paint(Paint::Cyan, command));
        let look = |file: &str| {
            let store = format!("posthouse --store {}", shell_word(&format!("sqlite://{file}")));
            let saga = format!("{store} saga show fulfil/order-{DECLINED}");
            say("Look at it:", &format!("{store} messages list")) + &say("           ", &saga)
        };
        let text = if self.place.kept {
            look(&self.place.file.display().to_string())
        } else {
            say("Keep it:   ", "posthouse demo --keep demo.db") + &look("demo.db")
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
        let lines: Vec<_> = lines
            .iter()
            .map(|line| format!("   {mark} {}\n", broken(line, usize::from(WIDTH) - 6).join("\n      ")))
            .collect();
        let title = self.out.paint(Paint::Bold, &format!("{}  {title}", self.step));
        self.out.data(&format!("{title}\n{}", lines.concat()))
    }

    /// Starts the relay of this name, and answers its process id.
    fn start(&mut self, name: &str) -> Result<u32, Failure> {
        let config = self.place.configure(name, &self.warehouse.url, LEASE)?;
        let relay = RelayProcess::start(&config, &self.secret)?;
        let id = relay.id();
        self.relay = Some(relay);
        Ok(id)
    }

    /// What the application does: its own row and its messages, in one transaction.
    fn order(&mut self, number: u64, item: &str, messages: &[Message]) -> Result<Vec<MessageId>, Failure> {
        let tx = self.shop.transaction_with_behavior(Immediate)?;
        tx.execute("INSERT INTO orders (id, item) VALUES (?1, ?2)", (number as i64, item))?;
        let ids: Result<Vec<_>, _> = messages
            .iter()
            .map(|message| self.outbox.enqueue(&tx, message).map(|enqueued| enqueued.id()))
            .collect();
        let ids = ids?;
        tx.commit()?;
        Ok(ids)
    }

    /// Orders and messages in the file.
    async fn count(&self) -> Result<(usize, usize), Failure> {
        let orders: i64 = self
            .shop
            .query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?;
        let messages = self.messages(&Filter::default()).await?;
        Ok((usize::try_from(orders).unwrap_or(0), messages))
    }

    /// The shop's own messages; those of sagas are not meant for the warehouse.
    async fn messages(&self, filter: &Filter) -> Result<usize, Failure> {
        let all = self.admin.list(filter).await?.messages;
        Ok(all.iter().filter(|view| view.topic.starts_with("order.")).count())
    }

    /// The message as the store has it, which must be in this state.
    async fn view(&self, id: MessageId, state: State) -> Result<MessageView, Failure> {
        let view = self.find(id).await?;
        found(view.state == state, &format!("the message {state}"))?;
        Ok(view)
    }

    async fn find(&self, id: MessageId) -> Result<MessageView, Failure> {
        Ok(self.admin.find(id).await?.ok_or(Error::NotFound(id))?)
    }

    async fn receipt(&self, id: MessageId) -> Result<String, Failure> {
        let last = self.admin.attempts(id).await?.pop();
        Ok(last.and_then(|attempt| attempt.receipt).unwrap_or_default())
    }

    /// Waits until a relay has brought the message into this state.
    async fn becomes(&mut self, id: MessageId, state: State) -> Result<MessageView, Failure> {
        let what = format!("the message {state}");
        self.wait(&what, async |stage: &mut Self| {
            Ok(Some(stage.find(id).await?).filter(|view| view.state == state))
        })
        .await
    }

    /// Waits until a relay has brought the saga to its end, which must be this one.
    async fn ends(&mut self, id: SagaId, end: SagaState) -> Result<SagaView, Failure> {
        let over = async |stage: &mut Self| {
            let view = drive::load(&stage.admin, id).await?.view();
            Ok(Some(view).filter(|view| view.row.state.is_over()))
        };
        let view = self.wait("the end of a saga", over).await?;
        found(view.row.state == end, &format!("the saga {end}"))?;
        Ok(view)
    }

    /// Looks again and again, for as long as the relay lives.
    async fn wait<T>(
        &mut self,
        what: &str,
        mut look: impl AsyncFnMut(&mut Self) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let since = Instant::now();
        loop {
            if let Some(seen) = look(self).await? {
                return Ok(seen);
            }
            if let Some(relay) = &mut self.relay {
                relay.check()?;
            }
            found(since.elapsed() < PATIENCE, what)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A step, for programs.
#[derive(Serialize)]
struct Told<'a> {
    step: u32,
    did: &'a str,
    found: &'a [String],
}

fn message(topic: &str, order: u64) -> Result<Message, Failure> {
    Ok(Message::json(topic, &json!({ "order": order }))?)
}

fn counted((orders, messages): (usize, usize)) -> String {
    format!("{orders} order, {messages} message in the file")
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
