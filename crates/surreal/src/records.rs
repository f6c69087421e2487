//! Records: how they are named, read and written. One transaction is one view of all of them.

use async_trait::async_trait;
use posthouse_core::Error;
use std::ops::Bound;
use surrealdb::{
    Connection,
    method::Transaction,
    types::{Array, Object, RecordId, RecordIdKey, RecordIdKeyRange, SurrealValue, Value},
};
use uuid::Uuid;

use crate::error::{from_surreal, internal};

const GET: &str = include_str!("../sql/get.surql");
const WATCH: &str = include_str!("../sql/watch.surql");
const FIRST: &str = include_str!("../sql/first.surql");
const LAST: &str = include_str!("../sql/last.surql");
const COUNT: &str = include_str!("../sql/count.surql");
const WRITE: &str = include_str!("../sql/write.surql");
const DRAW: &str = include_str!("../sql/draw.surql");

/// A transaction that runs the statements of this store: SurrealDB's own, of whatever engine.
#[async_trait]
pub trait Run: Send + Sync {
    /// Runs statements, and answers what each of them returned. If one of them failed, that is the answer: a statement that fails says so
    /// in its own result, and nowhere else.
    async fn run(&self, sql: &'static str, values: Vec<(&'static str, Value)>) -> Result<Vec<Value>, Error>;
}

#[async_trait]
impl<C: Connection> Run for Transaction<C> {
    async fn run(&self, sql: &'static str, values: Vec<(&'static str, Value)>) -> Result<Vec<Value>, Error> {
        let mut query = self.query(sql);
        for value in values {
            query = query.bind(value);
        }
        let mut answers = query.await.and_then(|all| all.check()).map_err(from_surreal)?;
        let count = answers.num_statements();
        (0..count).map(|at| answers.take(at).map_err(from_surreal)).collect()
    }
}

/// A part of a record's id. Records stand in the order of these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Int(i64),
    Text(String),
    Uuid(Uuid),
    /// Behind all others: where what begins so is over.
    End,
}

impl From<i64> for Part {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&String> for Part {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<Uuid> for Part {
    fn from(id: Uuid) -> Self {
        Self::Uuid(id)
    }
}

impl Part {
    fn value(&self) -> Value {
        match self {
            Self::Int(number) => Value::from_t(*number),
            Self::Text(text) => Value::String(text.clone()),
            Self::Uuid(id) => Value::from_t(*id),
            Self::End => Value::Object(Object::new()),
        }
    }

    fn of(value: Value) -> Result<Self, Error> {
        match value {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Uuid(id) => Ok(Self::Uuid(id.into_inner())),
            Value::Number(number) => match number.to_int() {
                Some(number) => Ok(Self::Int(number)),
                None => Err(internal("an id is not a whole number")),
            },
            other => Err(internal(format!("not a part of an id: {other:?}"))),
        }
    }
}

/// The name of a record: its table, and the list that is its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub table: &'static str,
    pub parts: Vec<Part>,
}

/// A [`Name`] of a table and some parts.
macro_rules! name {
    ($table:expr, $($part:expr),+ $(,)?) => {
        $crate::records::Name { table: $table, parts: vec![$($crate::records::Part::from($part)),+] }
    };
}
pub(crate) use name;

fn key(parts: &[Part]) -> RecordIdKey {
    RecordIdKey::Array(Array::from(parts.iter().map(Part::value).collect::<Vec<_>>()))
}

impl Name {
    fn id(&self) -> Value {
        Value::RecordId(RecordId::new(self.table, key(&self.parts)))
    }

    /// The number in this place of its id.
    pub fn number(&self, at: usize) -> Result<i64, Error> {
        match self.parts.get(at) {
            Some(Part::Int(number)) => Ok(*number),
            other => Err(internal(format!("not a number in an id: {other:?}"))),
        }
    }

    /// The text in this place of its id.
    pub fn text(&self, at: usize) -> Result<&str, Error> {
        match self.parts.get(at) {
            Some(Part::Text(text)) => Ok(text),
            other => Err(internal(format!("not a text in an id: {other:?}"))),
        }
    }
}

/// Records that stand together.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    table: &'static str,
    from: Bound<Vec<Part>>,
    to: Bound<Vec<Part>>,
}

impl Range {
    /// Those whose ids begin so.
    pub fn under(prefix: Name) -> Self {
        let mut last = prefix.parts.clone();
        last.push(Part::End);
        Self {
            table: prefix.table,
            from: Bound::Included(prefix.parts),
            to: Bound::Included(last),
        }
    }

    /// All of a table.
    pub const fn all(table: &'static str) -> Self {
        Self {
            table,
            from: Bound::Unbounded,
            to: Bound::Unbounded,
        }
    }

    /// Of these, those behind this one.
    pub fn above(mut self, name: Name) -> Self {
        self.from = Bound::Excluded(name.parts);
        self
    }

    /// Of these, those before this one.
    pub fn below(mut self, name: Name) -> Self {
        self.to = Bound::Excluded(name.parts);
        self
    }

    /// Of these, this one and those before it.
    pub fn up_to(mut self, name: Name) -> Self {
        self.to = Bound::Included(name.parts);
        self
    }

    fn value(self) -> Value {
        let bound = |bound: Bound<Vec<Part>>| bound.map(|parts| key(&parts));
        let range = RecordIdKeyRange {
            start: bound(self.from),
            end: bound(self.to),
        };
        Value::RecordId(RecordId::new(self.table, RecordIdKey::Range(Box::new(range))))
    }
}

/// The records of these names, in their order; none for one that is not there.
pub(crate) async fn get<T: SurrealValue>(on: &dyn Run, names: &[Name]) -> Result<Vec<Option<T>>, Error> {
    read_in_order(on, GET, names).await
}

/// The same; and if somebody else changes one of them, or makes it, before this transaction commits, that is a conflict.
pub(crate) async fn watch<T: SurrealValue>(on: &dyn Run, names: &[Name]) -> Result<Vec<Option<T>>, Error> {
    read_in_order(on, WATCH, names).await
}

async fn read_in_order<T: SurrealValue>(
    on: &dyn Run,
    sql: &'static str,
    names: &[Name],
) -> Result<Vec<Option<T>>, Error> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let ids = Value::Array(names.iter().map(Name::id).collect::<Vec<_>>().into());
    let found = rows::<T>(on.run(sql, vec![("ids", ids)]).await?)?;
    let mut found: std::collections::BTreeMap<Vec<Part>, T> = found.into_iter().collect();
    Ok(names.iter().map(|name| found.remove(&name.parts)).collect())
}

/// One record, if it is there.
pub(crate) async fn get_one<T: SurrealValue>(on: &dyn Run, name: Name) -> Result<Option<T>, Error> {
    Ok(get(on, &[name]).await?.pop().flatten())
}

/// The first of a range, at most so many, with their names.
pub(crate) async fn first<T: SurrealValue>(on: &dyn Run, range: Range, most: usize) -> Result<Vec<(Name, T)>, Error> {
    read_range(on, FIRST, range, most).await
}

/// The last of a range, the last of all in front.
pub(crate) async fn last<T: SurrealValue>(on: &dyn Run, range: Range, most: usize) -> Result<Vec<(Name, T)>, Error> {
    read_range(on, LAST, range, most).await
}

async fn read_range<T: SurrealValue>(
    on: &dyn Run,
    sql: &'static str,
    range: Range,
    most: usize,
) -> Result<Vec<(Name, T)>, Error> {
    let table = range.table;
    let most = Value::from_t(i64::try_from(most).unwrap_or(i64::MAX));
    let found = rows::<T>(on.run(sql, vec![("range", range.value()), ("most", most)]).await?)?;
    Ok(found
        .into_iter()
        .map(|(parts, record)| (Name { table, parts }, record))
        .collect())
}

/// How many there are in a range; it is not counted further than so many.
pub(crate) async fn count(on: &dyn Run, range: Range, most: u32) -> Result<u64, Error> {
    let values = vec![("range", range.value()), ("most", Value::from_t(i64::from(most)))];
    let counted = on.run(COUNT, values).await?.pop().unwrap_or_default();
    let counted = i64::from_value(counted).map_err(from_surreal)?;
    Ok(counted.unsigned_abs())
}

/// The records that the last statement returned, with the parts of their ids.
fn rows<T: SurrealValue>(mut answers: Vec<Value>) -> Result<Vec<(Vec<Part>, T)>, Error> {
    let Some(Value::Array(rows)) = answers.pop() else {
        return Err(internal("a read answered no list"));
    };
    let mut read = Vec::new();
    for row in rows {
        let Value::Object(mut row) = row else { continue };
        let Some(Value::RecordId(RecordId {
            key: RecordIdKey::Array(parts),
            ..
        })) = row.remove("id")
        else {
            return Err(internal("a record has no id of ours"));
        };
        let parts: Result<Vec<_>, _> = parts.into_iter().map(Part::of).collect();
        read.push((parts?, T::from_value(Value::Object(row)).map_err(from_surreal)?));
    }
    Ok(read)
}

/// Writes records as a whole, and takes others away.
pub(crate) async fn write(
    on: &dyn Run,
    puts: impl IntoIterator<Item = (Name, Value)>,
    drops: impl IntoIterator<Item = Name>,
) -> Result<(), Error> {
    let put = |(name, content): (Name, Value)| {
        let mut one = Object::new();
        one.insert("id", name.id());
        one.insert("content", content);
        Value::Object(one)
    };
    let mut drops: Vec<_> = drops.into_iter().map(|name| name.id()).collect();
    let puts: Vec<_> = puts
        .into_iter()
        .map(|(name, content)| {
            drops.push(name.id());
            put((name, content))
        })
        .collect();
    let list = |values: &[Value]| Value::Array(values.to_vec().into());
    let (mut puts, mut drops) = (puts.as_slice(), drops.as_slice());
    // Whatever is taken away is so before anything is made.
    while !puts.is_empty() || !drops.is_empty() {
        let (gone, left) = drops.split_at(drops.len().min(WRITTEN));
        let most = if left.is_empty() { WRITTEN } else { 0 };
        let (some, rest) = puts.split_at(puts.len().min(most));
        on.run(WRITE, vec![("puts", list(some)), ("drops", list(gone))]).await?;
        (puts, drops) = (rest, left);
    }
    Ok(())
}

/// The most that one statement writes: it takes the longer for each, the more they are.
const WRITTEN: usize = 500;

/// The most that are drawn at once: SurrealDB bounds what one function answers.
const DRAWN: usize = 1000;

/// Fresh numbers, rising: so many, or the most that are drawn at once.
pub(crate) async fn draw(on: &dyn Run, count: usize) -> Result<Vec<i64>, Error> {
    let count = Value::from_t(i64::try_from(count.min(DRAWN)).unwrap_or(1));
    match on.run(DRAW, vec![("count", count)]).await?.pop() {
        Some(numbers @ Value::Array(_)) => Vec::<i64>::from_value(numbers).map_err(from_surreal),
        other => Err(internal(format!("no numbers were drawn: {other:?}"))),
    }
}
