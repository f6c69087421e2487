//! The story. Whatever it tells is read from the database, and it fails where that is not as told.

use super::mini_chat::{Basis, Chat, Ending, Failure, Finalized, NAMESPACE, TOPIC, TurnId, UsageSnapshot};
use posthouse::{Admin, AnyStore, Filter, MessageView, State};
use std::{
    process::Stdio,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdin, Command},
    task::JoinSet,
};

const USER: &str = "ada";

pub async fn tell<C: Chat>(url: &str) -> Result<(), Failure> {
    C::install(url).await?;
    let stage = Stage {
        chat: C::open(url).await?,
        admin: AnyStore::open(url).await?.admin(),
        url: url.to_owned(),
        // So that it can be told twice in one database.
        tenant: format!("acme-{:x}", SystemTime::UNIX_EPOCH.elapsed()?.as_secs()),
    };
    stage.three_endings().await?;
    stage.race().await?;
    stage.death_before_commit().await?;
    stage.death_after_claim().await?;
    stage.takeover().await?;
    stage.balance().await
}

struct Stage<C> {
    chat: C,
    admin: Arc<dyn Admin>,
    url: String,
    tenant: String,
}

impl<C: Chat> Stage<C> {
    fn turn(&self, n: usize) -> TurnId {
        TurnId::new(&self.tenant, &format!("turn-{n:02}"), "req-1")
    }

    async fn three_endings(&self) -> Result<(), Failure> {
        title(
            1,
            "Three turns end: the turn, its quota and its message are committed in one transaction.",
        );
        let first = self.chat.set_policy("gpt-large", 2000).await?;
        for n in 1..=3 {
            self.chat.begin(&self.turn(n), Some(USER), 120).await?;
            self.chat
                .streamed(&self.turn(n), 3000 * n as i64, "resp_68f1c0ffee")
                .await?;
        }
        // Turns keep the policy with which they began.
        self.chat.set_policy("gpt-small", 500).await?;
        self.chat.reported(&self.turn(1), 118, 1204).await?;
        for (n, ending) in [(1, Ending::Completed), (2, Ending::Failed), (3, Ending::Cancelled)] {
            let usage = self.win(n, ending).await?;
            must("the policy of the turn", usage.policy_version_applied, first)?;
            let basis = match usage.basis {
                Basis::Actual => "as the provider counted",
                Basis::Estimate => "a bounded estimate",
            };
            println!(
                "      {:<9}  {:>4} + {:>4} tokens, {}",
                ending.as_str(),
                usage.input_tokens,
                usage.output_tokens,
                basis
            );
            if n == 3 {
                let payload = serde_json::to_string(&usage)?;
                must("ids of the provider in the payload", payload.contains("resp_"), false)?;
                told(&format!("the payload of the last one: {payload}"));
            }
        }
        must("messages", self.messages().await?.len(), 3)?;
        told(&format!(
            "3 messages, {} tokens of {USER}'s quota",
            self.chat.spent(&self.tenant, USER).await?
        ));
        Ok(())
    }

    async fn race(&self) -> Result<(), Failure> {
        title(
            2,
            "Eight finalizers want to end the same turn: the stream, a timeout, a disconnect, ...",
        );
        let before = self.chat.spent(&self.tenant, USER).await?;
        let turn = self.turn(4);
        self.chat.begin(&turn, Some(USER), 50).await?;
        let mut racers = JoinSet::new();
        for n in 0..8 {
            let (chat, turn) = (self.chat.clone(), turn.clone());
            let ending = [Ending::Completed, Ending::Failed, Ending::Cancelled][n % 3];
            racers.spawn(async move { chat.finalize(&turn, ending).await });
        }
        let mut won = 0;
        for finalized in racers.join_all().await {
            won += usize::from(finalized? != Finalized::AlreadyFinal);
        }
        must("winners", won, 1)?;
        must("messages", self.messages().await?.len(), 4)?;
        must("the quota", self.chat.spent(&self.tenant, USER).await?, before + 50)?;
        told(&format!(
            "1 winner ({}), 7 who changed nothing; one message more, one debit more",
            self.chat.state(&turn).await?
        ));
        Ok(())
    }

    async fn death_before_commit(&self) -> Result<(), Failure> {
        title(
            3,
            "A finalizer dies after it has settled and enqueued, before it commits.",
        );
        let before = self.chat.spent(&self.tenant, USER).await?;
        let turn = self.turn(5);
        self.chat.begin(&turn, Some(USER), 70).await?;
        self.chat.finalize_and_die(&turn, Ending::Completed).await?;
        must("messages", self.messages().await?.len(), 4)?;
        must("the quota", self.chat.spent(&self.tenant, USER).await?, before)?;
        must("the turn", self.chat.state(&turn).await?, "running".to_owned())?;
        told("no debit, no message, and the turn is still running");
        self.win(5, Ending::Failed).await?;
        must("messages", self.messages().await?.len(), 5)?;
        told("somebody else ends it: both");
        Ok(())
    }

    async fn death_after_claim(&self) -> Result<(), Failure> {
        title(
            4,
            "Replica A claims all five, bills one, and is killed (kill -9) before it can report that.",
        );
        let mut a = Replica::start(&self.url, "A", "death")?;
        let status = a.child.wait().await?;
        must("a clean end of A", status.success(), false)?;
        a.printed().await;
        let messages = self.messages().await?;
        let held = messages
            .iter()
            .filter(|m| m.state == State::Leased && m.worker.as_deref() == Some("A"));
        must("messages that A holds", held.count(), 5)?;
        must("bills", self.chat.bills(&self.tenant).await?.len(), 1)?;
        told(&format!(
            "{status}; 5 messages are still leased to it, 1 bill is written"
        ));
        Ok(())
    }

    async fn takeover(&self) -> Result<(), Failure> {
        title(
            5,
            "Replicas B and C: 12 more turns, and what A held when its leases run out. At B the billing system is busy at first.",
        );
        let b = Replica::start(&self.url, "B", "busy")?;
        let c = Replica::start(&self.url, "C", "")?;
        for n in 6..=17 {
            self.chat.begin(&self.turn(n), Some(USER), 10).await?;
            self.chat.streamed(&self.turn(n), 4 * n as i64, "resp_7").await?;
            self.win(n, Ending::Cancelled).await?;
        }
        let mut waiting = 0;
        while self.messages().await?.iter().any(|m| m.state != State::Done) {
            waiting += 1;
            if waiting > 600 {
                return Err("the replicas do not come to an end".into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for replica in [b, c] {
            replica.stop().await?;
        }
        Ok(())
    }

    async fn balance(&self) -> Result<(), Failure> {
        title(6, "What is on record.");
        let messages = self.messages().await?;
        let (mut repeats, mut failures) = (0, 0);
        for message in &messages {
            let attempts = self.admin.attempts(message.id).await?;
            let words: Vec<_> = attempts
                .iter()
                .map(|a| {
                    let said = a.receipt.as_deref().or(a.error.as_deref()).unwrap_or_default();
                    let said = if said.is_empty() {
                        String::new()
                    } else {
                        format!(" ({said})")
                    };
                    format!("{} {}{said}", a.worker, a.outcome.as_str())
                })
                .collect();
            repeats += attempts
                .iter()
                .filter(|a| a.receipt.as_deref() == Some("already billed"))
                .count();
            failures += attempts
                .iter()
                .filter(|a| a.error.as_deref().is_some_and(|e| e.contains("503")))
                .count();
            if attempts.len() > 1 {
                println!(
                    "      {}  {}",
                    message.dedupe_key.as_deref().unwrap_or_default(),
                    words.join(", ")
                );
            }
        }
        let bills = self.chat.bills(&self.tenant).await?;
        let keys: Vec<_> = bills.iter().map(|(key, _)| Some(key.as_str())).collect();
        let told_of: Vec<_> = messages.iter().map(|m| m.dedupe_key.as_deref()).collect();
        must("bills for messages", keys, told_of)?;
        must("that a message was sent twice, and billed once", repeats > 0, true)?;
        let (billed, spent) = (
            bills.iter().map(|(_, tokens)| tokens).sum::<i64>(),
            self.chat.spent(&self.tenant, USER).await?,
        );
        must("tokens billed", billed, spent)?;
        told(&format!(
            "{failures} calls failed and were made again; {repeats} repeated after a death, and recognised"
        ));
        told(&format!(
            "{} messages, {} bills; {spent} tokens debited, {billed} tokens billed",
            messages.len(),
            bills.len()
        ));
        Ok(())
    }

    /// Ends a turn as the only one who tries.
    async fn win(&self, n: usize, ending: Ending) -> Result<UsageSnapshot, Failure> {
        match self.chat.finalize(&self.turn(n), ending).await? {
            Finalized::Won(usage, _) => Ok(usage),
            Finalized::AlreadyFinal => Err(format!("turn {n} was final already").into()),
        }
    }

    async fn messages(&self) -> Result<Vec<MessageView>, Failure> {
        let filter = Filter {
            namespace: Some(NAMESPACE.to_owned()),
            topic: Some(TOPIC.to_owned()),
            tenant: Some(self.tenant.clone()),
            oldest_first: true,
            limit: 100,
            ..Filter::default()
        };
        Ok(self.admin.list(&filter).await?.messages)
    }
}

/// A process of its own.
struct Replica {
    child: Child,
    /// It runs for as long as this is open. To wait for a child closes what it still has.
    running: Option<ChildStdin>,
}

impl Replica {
    fn start(url: &str, name: &str, fault: &str) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([url, "replica", name, fault])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            running: child.stdin.take(),
            child,
        })
    }

    /// Shows what it has said, when it has ended.
    async fn printed(&mut self) {
        if let Some(output) = self.child.stdout.take() {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                println!("      {line}");
            }
        }
    }

    async fn stop(mut self) -> Result<(), Failure> {
        drop(self.running.take());
        self.printed().await;
        must("a clean end", self.child.wait().await?.success(), true)
    }
}

fn title(n: u32, text: &str) {
    println!("\n{n}  {text}");
}

fn told(text: &str) {
    println!("   -> {text}");
}

fn must<T: PartialEq + std::fmt::Debug>(what: &str, found: T, told: T) -> Result<(), Failure> {
    if found == told {
        return Ok(());
    }
    Err(format!("the story is wrong: {what}: found {found:?} where it tells {told:?}").into())
}
