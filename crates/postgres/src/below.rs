//! Looking below the floors, beside the claims: for what a claim left there of which nobody heard the end.
//!
//! It walks over all that is not cleaned up, so no claim waits for it; only who has nothing to do does, a little.

use posthouse_core::{Claim, Error};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::{Row, types::Type};

use crate::{Postgres, error::from_driver, floors::FloorBook, lent::Lender};

/// How many lanes are looked into at once.
const LANES_AT_ONCE: usize = 1000;

/// How long one look may take; and where its connection is the only one.
const WITHIN: Duration = Duration::from_secs(60);
const BRIEFLY: Duration = Duration::from_millis(250);

/// How long somebody who has nothing to do waits for it.
const PATIENCE: Duration = Duration::from_millis(250);

/// What is under way ends with the handle that it is for.
#[derive(Default)]
pub(crate) struct Pass(Mutex<Vec<AbortHandle>>);

impl Pass {
    fn began(&self, task: AbortHandle) {
        let mut tasks = self.0.lock().unwrap_or_else(|e| e.into_inner());
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let tasks = self.0.get_mut().unwrap_or_else(|e| e.into_inner());
        tasks.drain(..).for_each(|task| task.abort());
    }
}

impl Postgres {
    /// Begins to look, when it is time for that. It answers how many lanes have something below their floor.
    pub(crate) fn look_below(&self, claim: &Claim) -> Option<JoinHandle<usize>> {
        let every = self.options.full_pass_every;
        let floors = self.book().of(&claim.namespaces).wants_pass(Instant::now(), every);
        if floors.is_empty() {
            return None;
        }
        let look = Below {
            lender: self.lender.clone(),
            sql: format!("SELECT lane, pos FROM {}.below_floors($1, $2)", self.schema),
            within: if self.options.connections > 1 { WITHIN } else { BRIEFLY },
        };
        let under_way = UnderWay {
            book: Arc::clone(&self.floors),
            namespaces: claim.namespaces.clone(),
            began: Instant::now(),
            every,
        };
        let task = tokio::spawn(async move {
            let mut lowered = 0;
            for part in floors.chunks(LANES_AT_ONCE) {
                // What cannot be looked into now is the next time; the others are meanwhile.
                let found = look.at(part).await.unwrap_or_default();
                lowered += found.len();
                let mut book = lock(&under_way.book);
                found.into_iter().for_each(|(lane, pos)| book.lower(lane, pos));
            }
            lowered
        });
        self.pass.began(task.abort_handle());
        Some(task)
    }

    /// Waits a little for such a look, and says whether it found anything.
    pub(crate) async fn found_below(&self, pass: Option<JoinHandle<usize>>) -> bool {
        let Some(pass) = pass else { return false };
        let found = tokio::time::timeout(PATIENCE, pass).await;
        found.is_ok_and(|ended| ended.is_ok_and(|lowered| lowered > 0))
    }
}

/// A look that is under way, until it ends, however it does: its runtime may be gone before.
struct UnderWay {
    book: Arc<Mutex<FloorBook>>,
    namespaces: Vec<String>,
    began: Instant,
    every: Duration,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut book = lock(&self.book);
        book.of(&self.namespaces).passed(self.began, Instant::now(), self.every);
    }
}

struct Below {
    lender: Lender,
    sql: String,
    within: Duration,
}

impl Below {
    /// What is in these lanes at these floors or below them: the first place of each.
    async fn at(&self, floors: &[(i64, i64)]) -> Result<Vec<(i64, i64)>, Error> {
        let (lanes, floors): (Vec<i64>, Vec<i64>) = floors.iter().copied().unzip();
        let args = [(&lanes as _, Type::INT8_ARRAY), (&floors as _, Type::INT8_ARRAY)];
        let rows = tokio::time::timeout(self.within, self.lender.query_once(&self.sql, &args));
        let rows = rows.await.map_err(|e| Error::Timeout(e.into()))??;
        let place = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.iter().map(place).collect::<Result<_, _>>().map_err(from_driver)
    }
}

fn lock(book: &Mutex<FloorBook>) -> std::sync::MutexGuard<'_, FloorBook> {
    book.lock().unwrap_or_else(|e| e.into_inner())
}
