//! Records: how they are named, read and written. One transaction is one view of all of them.

use async_trait::async_trait;
use posthouse_core::Error;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::atomic::{AtomicBool, Ordering},
};
use surrealdb::{
    Connection,
    method::Transaction,
    types::{Array, Object, RecordId, RecordIdKey, RecordIdKeyRange, SurrealValue, Value},
};
use uuid::Uuid;

use crate::{
    database::in_time,
    error::{from_surreal, internal},
    settings::BEGIN,
};

const GET: &str = include_str!("../sql/get.surql");
const WATCH: &str = include_str!("../sql/watch.surql");
const FIRST_EACH: &str = include_str!("../sql/first_each.surql");
const NAMES: &str = include_str!("../sql/names.surql");
const NEWEST: &str = include_str!("../sql/newest.surql");
const ENTRIES: &str = include_str!("../sql/entries.surql");
const SAGAS: &str = include_str!("../sql/sagas.surql");
const DROP: &str = include_str!("../sql/drop.surql");
const COUNT: &str = include_str!("../sql/count.surql");
const WRITE: &str = include_str!("../sql/write.surql");
const MAKE: &str = include_str!("../sql/make.surql");
const DRAW: &str = include_str!("../sql/draw.surql");

/// Statements that write nothing. Numbers are drawn outside of transactions.
const READS: [&str; 10] = [
    GET, WATCH, FIRST_EACH, NAMES, NEWEST, COUNT, DRAW, BEGIN, ENTRIES, SAGAS,
];

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
        let answers = async { query.await.and_then(|all| all.check()).map_err(from_surreal) };
        let mut answers = in_time(answers).await?;
        let count = answers.num_statements();
        (0..count).map(|at| answers.take(at).map_err(from_surreal)).collect()
    }
}

/// A transaction that knows whether it has written anything.
pub(crate) struct Written<T> {
    tx: T,
    written: AtomicBool,
}

impl<T> Written<T> {
    pub const fn new(tx: T) -> Self {
        Self {
            tx,
            written: AtomicBool::new(false),
        }
    }

    pub fn has_written(&self) -> bool {
        self.written.load(Ordering::Relaxed)
    }

    pub fn into_inner(self) -> T {
        self.tx
    }
}

#[async_trait]
impl<T: Run> Run for Written<T> {
    async fn run(&self, sql: &'static str, values: Vec<(&'static str, Value)>) -> Result<Vec<Value>, Error> {
        if !READS.contains(&sql) {
            self.written.store(true, Ordering::Relaxed);
        }
        self.tx.run(sql, values).await
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

/// The name of a record: what it is, and the list that is its id.
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

/// Tables of their own: those that are listened to, and those that are read from the end.
const OWN: [&str; 6] = [
    "posthouse_audit",
    "posthouse_dead",
    "posthouse_head",
    "posthouse_message",
    "posthouse_ready",
    "posthouse_saga_number",
];
/// The table that the others share, with what they are in front of their ids. For each record that is taken away SurrealDB 3.3 goes over all tables of the database, so
/// there should be few.
const SHARED: &str = "posthouse_record";

/// The table that records of this kind stand in, and what is in front of their ids.
fn home(kind: &'static str) -> (&'static str, Option<Part>) {
    match OWN.contains(&kind) {
        true => (kind, None),
        false => (SHARED, Some(Part::from(kind.trim_start_matches("posthouse_")))),
    }
}

fn key(front: Option<&Part>, parts: &[Part]) -> RecordIdKey {
    let parts = front.into_iter().chain(parts).map(Part::value);
    RecordIdKey::Array(Array::from(parts.collect::<Vec<_>>()))
}

impl Name {
    fn id(&self) -> Value {
        let (table, front) = home(self.table);
        Value::RecordId(RecordId::new(table, key(front.as_ref(), &self.parts)))
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
        let (table, front) = home(self.table);
        let bound = |bound: Bound<Vec<Part>>, all: &[Part]| match (bound, &front) {
            (Bound::Unbounded, Some(front)) => Bound::Included(key(Some(front), all)),
            (bound, front) => bound.map(|parts| key(front.as_ref(), &parts)),
        };
        let range = RecordIdKeyRange {
            start: bound(self.from, &[]),
            end: bound(self.to, &[Part::End]),
        };
        Value::RecordId(RecordId::new(table, RecordIdKey::Range(Box::new(range))))
    }
}

/// The records of these names, in their order; none for one that is not there. A name may be asked for twice. Where records may be large,
/// [`get_sized`] bounds what is answered at once.
pub(crate) async fn get<T: SurrealValue + Clone>(on: &dyn Run, names: &[Name]) -> Result<Vec<Option<T>>, Error> {
    get_by(on, GET, names).await
}

/// The same of records that may be large, each with about as many bytes as it has on its way: as many at once as one answer may have.
pub(crate) async fn get_sized<T: SurrealValue + Clone>(
    on: &dyn Run,
    names: &[(Name, usize)],
) -> Result<Vec<Option<T>>, Error> {
    let (mut found, mut some, mut bytes) = (Vec::with_capacity(names.len()), Vec::new(), 0_usize);
    for (name, size) in names {
        if bytes.saturating_add(*size) > ANSWERED {
            found.extend(get(on, &std::mem::take(&mut some)).await?);
            bytes = 0;
        }
        some.push(name.clone());
        bytes = bytes.saturating_add(*size);
    }
    found.extend(get(on, &some).await?);
    Ok(found)
}

/// Sagas of these names, in their order, without their snapshots.
pub(crate) async fn sagas<T: SurrealValue + Clone>(on: &dyn Run, names: &[Name]) -> Result<Vec<Option<T>>, Error> {
    get_by(on, SAGAS, names).await
}

async fn get_by<T: SurrealValue + Clone>(
    on: &dyn Run,
    sql: &'static str,
    names: &[Name],
) -> Result<Vec<Option<T>>, Error> {
    let mut all = Vec::with_capacity(names.len());
    for some in names.chunks(ASKED) {
        let found = rows::<T>(on.run(sql, vec![("ids", ids(some))]).await?)?;
        let found: BTreeMap<Vec<Part>, T> = found.into_iter().collect();
        all.extend(some.iter().map(|name| found.get(&name.parts).cloned()));
    }
    Ok(all)
}

/// If somebody else changes one of these, or makes it, before this transaction commits, that is a conflict.
pub(crate) async fn watch(on: &dyn Run, names: &[Name]) -> Result<(), Error> {
    if !names.is_empty() {
        on.run(WATCH, vec![("ids", ids(names))]).await?;
    }
    Ok(())
}

fn ids(names: &[Name]) -> Value {
    Value::Array(names.iter().map(Name::id).collect::<Vec<_>>().into())
}

/// One record, if it is there.
pub(crate) async fn get_one<T: SurrealValue + Clone>(on: &dyn Run, name: Name) -> Result<Option<T>, Error> {
    Ok(get(on, &[name]).await?.pop().flatten())
}

/// As many as there are: SurrealDB takes no larger bound.
pub(crate) const ALL: usize = i32::MAX as usize;

/// The first of a range, at most so many, with their names.
pub(crate) async fn first<T: SurrealValue>(on: &dyn Run, range: Range, most: usize) -> Result<Vec<(Name, T)>, Error> {
    Ok(first_each(on, vec![range], most).await?.pop().unwrap_or_default())
}

/// The first of each of these ranges, at most so many of each.
pub(crate) async fn first_each<T: SurrealValue>(
    on: &dyn Run,
    ranges: Vec<Range>,
    most: usize,
) -> Result<Vec<Vec<(Name, T)>>, Error> {
    each(on, FIRST_EACH, ranges, most).await
}

/// The names of all that stands in these ranges.
pub(crate) async fn names_in(on: &dyn Run, ranges: Vec<Range>) -> Result<Vec<Name>, Error> {
    let found = each::<Value>(on, NAMES, ranges, ALL).await?;
    Ok(found.into_iter().flatten().map(|(name, _)| name).collect())
}

async fn each<T: SurrealValue>(
    on: &dyn Run,
    sql: &'static str,
    ranges: Vec<Range>,
    most: usize,
) -> Result<Vec<Vec<(Name, T)>>, Error> {
    let mut found = Vec::with_capacity(ranges.len());
    for some in ranges.chunks(ASKED) {
        let values = Value::Array(
            some.iter()
                .map(|range| range.clone().value())
                .collect::<Vec<_>>()
                .into(),
        );
        let most = Value::from_t(i64::try_from(most).unwrap_or(i64::MAX));
        let Some(Value::Array(each)) = on.run(sql, vec![("ranges", values), ("most", most)]).await?.pop() else {
            return Err(internal("a read answered no list"));
        };
        for (range, rows) in some.iter().zip(each) {
            let table = range.table;
            let read = read_rows::<T>(rows)?.into_iter();
            found.push(read.map(|(parts, record)| (Name { table, parts }, record)).collect());
        }
    }
    Ok(found)
}

/// The first entries of a range of the ledger, without what was answered and its headers.
pub(crate) async fn entries<T: SurrealValue>(on: &dyn Run, range: Range, most: usize) -> Result<Vec<(Name, T)>, Error> {
    let table = range.table;
    let values = vec![
        ("range", range.value()),
        ("most", Value::from_t(i64::try_from(most).unwrap_or(i64::MAX))),
    ];
    let found = rows::<T>(on.run(ENTRIES, values).await?)?.into_iter();
    Ok(found.map(|(parts, record)| (Name { table, parts }, record)).collect())
}

/// The most records or ranges that are asked for at once.
const ASKED: usize = 500;
/// The most bytes of large records that are answered at once, but for one that has more alone: a WebSocket takes no answer beyond 64 MiB.
const ANSWERED: usize = 16 << 20;

/// The last records of a table whose ids are one number each, below this one; the last of all in front. SurrealDB reads a range from its beginning alone, so
/// stretches of numbers are read, ever longer ones where little is found.
pub(crate) async fn last<T: SurrealValue>(
    on: &dyn Run,
    table: &'static str,
    below: i64,
    most: usize,
) -> Result<Vec<(Name, T)>, Error> {
    let newest = rows::<Value>(on.run(NEWEST, vec![("table", Value::String(table.to_owned()))]).await?)?;
    let Some((parts, _)) = newest.into_iter().next() else {
        return Ok(Vec::new());
    };
    let newest = Name { table, parts }.number(0)?;
    let (mut above, mut width, mut found) = (below.min(newest.saturating_add(1)), STRETCH, Vec::new());
    // Ends: `above` falls, or a stretch that holds too much becomes shorter.
    while found.len() < most && above > 0 {
        let from = above.saturating_sub(width).max(0);
        let stretch = Range::all(table)
            .above(name!(table, from - 1))
            .below(name!(table, above));
        let page = first::<T>(on, stretch, STRETCH_MOST).await?;
        if page.len() == STRETCH_MOST && width > STRETCH {
            width /= 4;
            continue;
        }
        found.extend(page.into_iter().rev());
        (above, width) = (from, width.saturating_mul(4));
    }
    found.truncate(most);
    Ok(found)
}

/// How many numbers the first stretch has, and the most records that one is read with: the first always fits.
const STRETCH: i64 = 1024;
const STRETCH_MOST: usize = 2048;

/// How many there are in a range; it is not counted further than so many.
pub(crate) async fn count(on: &dyn Run, range: Range, most: u32) -> Result<u64, Error> {
    let values = vec![("range", range.value()), ("most", Value::from_t(i64::from(most)))];
    let counted = on.run(COUNT, values).await?.pop().unwrap_or_default();
    let counted = i64::from_value(counted).map_err(from_surreal)?;
    Ok(counted.unsigned_abs())
}

/// The records that the last statement returned, with the parts of their ids.
fn rows<T: SurrealValue>(mut answers: Vec<Value>) -> Result<Vec<(Vec<Part>, T)>, Error> {
    read_rows(answers.pop().unwrap_or_default())
}

fn read_rows<T: SurrealValue>(rows: Value) -> Result<Vec<(Vec<Part>, T)>, Error> {
    let Value::Array(rows) = rows else {
        return Err(internal("a read answered no list"));
    };
    let mut read = Vec::new();
    for row in rows {
        let Value::Object(mut row) = row else { continue };
        let Some(Value::RecordId(RecordId {
            table,
            key: RecordIdKey::Array(parts),
        })) = row.remove("id")
        else {
            return Err(internal("a record has no id of ours"));
        };
        let front = usize::from(table.as_str() == SHARED);
        let parts: Result<Vec<_>, _> = parts.into_iter().skip(front).map(Part::of).collect();
        read.push((parts?, T::from_value(Value::Object(row)).map_err(from_surreal)?));
    }
    Ok(read)
}

/// Records that a transaction writes as a whole, and those that it takes away. Whatever is taken away is so before anything is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writes {
    /// Those that are known not to be there, which is half of the work.
    pub makes: BTreeMap<Name, Value>,
    /// Those that may be there, or not.
    pub puts: BTreeMap<Name, Value>,
    pub drops: BTreeSet<Name>,
}

impl Writes {
    /// One record alone, which may be there.
    pub fn of(name: Name, content: impl SurrealValue) -> Self {
        let mut writes = Self::default();
        writes.put(name, content.into_value());
        writes
    }

    /// What will be there, if it is known by what is written.
    pub fn known(&self, name: &Name) -> Option<Option<&Value>> {
        match self.makes.get(name).or_else(|| self.puts.get(name)) {
            Some(content) => Some(Some(content)),
            None => self.drops.contains(name).then_some(None),
        }
    }

    pub fn put(&mut self, name: Name, content: Value) {
        self.drops.remove(&name);
        match self.makes.get_mut(&name) {
            Some(made) => *made = content,
            None => _ = self.puts.insert(name, content),
        }
    }

    /// Of one that is not there, unless it was taken away just now.
    pub fn make(&mut self, name: Name, content: Value) {
        match self.drops.contains(&name) || self.puts.contains_key(&name) {
            true => self.put(name, content),
            false => _ = self.makes.insert(name, content),
        }
    }

    pub fn drop(&mut self, name: Name) {
        self.puts.remove(&name);
        // One that would have been made is taken away all the same: to take away what is not there is to write nothing.
        self.makes.remove(&name);
        self.drops.insert(name);
    }

    /// Writes all of it.
    pub async fn write(self, on: &dyn Run) -> Result<(), Error> {
        let look = Value::Bool(self.makes.is_empty() && self.puts.is_empty());
        let dropped: Vec<_> = self.drops.iter().map(Name::id).collect();
        for some in dropped.chunks(WRITTEN) {
            let values = vec![("drops", Value::Array(some.to_vec().into())), ("look", look.clone())];
            allowed(on.run(DROP, values).await?)?;
        }
        in_parts(on, MAKE, self.makes).await?;
        in_parts(on, WRITE, self.puts).await
    }
}

async fn in_parts(on: &dyn Run, sql: &'static str, records: BTreeMap<Name, Value>) -> Result<(), Error> {
    let (mut records, stamp) = (records.into_iter().peekable(), fastrand::i64(..));
    // Ends: each turn takes one at least.
    while let Some((name, content)) = records.next() {
        let mut weight = weight(&content);
        let (first, mut rest) = (put(&name, content, stamp), Vec::new());
        let fits = |(_, content): &(Name, Value), weight: usize, count: usize| {
            count + 1 < WRITTEN && weight + self::weight(content) <= WEIGHT
        };
        while let Some((name, content)) = records.next_if(|next| fits(next, weight, rest.len())) {
            weight += self::weight(&content);
            rest.push(put(&name, content, stamp));
        }
        let values = vec![("first", first), ("rest", Value::Array(rest.into()))];
        allowed(on.run(sql, values).await?)?;
    }
    Ok(())
}

/// Whether what was to be written is, by the last answer.
fn allowed(answers: Vec<Value>) -> Result<(), Error> {
    match answers.last() {
        Some(Value::Bool(true)) => Ok(()),
        _ => Err(Error::Denied(
            "this user may not write to the tables of Posthouse; the role EDITOR of the database may".to_owned(),
        )),
    }
}

/// One to be written. To write what is there already is to write nothing, for SurrealDB, and then nobody who does the same at that time is told. So each has a stamp that no other
/// write has. What is not there in a record is not carried to it either.
fn put(name: &Name, mut content: Value, stamp: i64) -> Value {
    if let Value::Object(fields) = &mut content {
        fields.retain(|_, value| !matches!(value, Value::None));
        fields.insert("stamp", Value::from_t(stamp));
    }
    let mut one = Object::new();
    one.insert("id", name.id());
    one.insert("content", content);
    Value::Object(one)
}

/// About how many bytes a record has on its way.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.as_ref().len(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + weight(value)).sum(),
        Value::Array(values) => values.iter().map(weight).sum(),
        _ => 8,
    }
}

/// The most that one statement writes: it takes the longer for each, the more they are.
const WRITTEN: usize = 500;
/// The most bytes of them, but for one that has more alone: a WebSocket takes no statement beyond 64 MiB.
const WEIGHT: usize = 4 << 20;

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
