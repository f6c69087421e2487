//! Reads keys one by one: from a flag, else the environment, else the file, else the default. What is wrong is put down, and the
//! reading goes on, so that everything is told at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    keys::{self, Key, Kind},
    problem::{Place, Problem, Text},
    secret::{self, Secret},
    value::{Source, Value},
};

/// The environment, as it was when the program began.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// That of this process. What is no text is marked as such (U+FFFD), and refused where it matters.
    pub fn of_process() -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self(
            std::env::vars_os()
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
        )
    }

    /// A variable that is set, and not to nothing.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The names that can only be meant for us: `POSTHOUSE_SECTION__KEY`.
    fn ours(&self) -> impl Iterator<Item = &str> {
        let names = self.0.keys().map(String::as_str);
        names.filter(|name| {
            name.strip_prefix("POSTHOUSE_")
                .is_some_and(|rest| rest.contains("__") && !rest.starts_with("TEST_"))
        })
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(pairs: [(&str, &str); N]) -> Self {
        Self(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }
}

/// Shows which variables there are, never what is in them.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A value in force, and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The section as it stands in the file: `outbox`, `store.shop`, `route[0]`, `route[0].retry`.
    pub section: String,
    /// The key.
    pub key: &'static Key,
    /// The value.
    pub value: Value,
    /// Where it came from.
    pub source: Source,
}

/// Everything that is needed to read, and what came of it.
pub struct Reader<'a> {
    /// The file.
    pub text: Text<'a>,
    /// The folder that paths in the file begin in.
    pub folder: &'a Path,
    /// The environment.
    pub environment: &'a Environment,
    /// What is wrong so far.
    pub problems: Vec<Problem>,
    /// What is in force so far.
    pub settings: Vec<Setting>,
    /// Other files that were read, or should have been.
    pub files: Vec<PathBuf>,
    /// Variables that mean something.
    known: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    /// A reader that has read nothing yet.
    pub fn new(text: Text<'a>, folder: &'a Path, environment: &'a Environment) -> Self {
        Self {
            text,
            folder,
            environment,
            problems: Vec::new(),
            settings: Vec::new(),
            files: Vec::new(),
            known: BTreeSet::new(),
        }
    }

    /// Puts down what is wrong.
    pub fn wrong(&mut self, place: Place, key: impl Into<String>, message: impl Into<String>) -> &mut Problem {
        self.problems.push(Problem::new(place, key, message));
        let last = self.problems.len() - 1;
        &mut self.problems[last]
    }

    /// Refuses names in a table that nothing reads.
    pub fn refuse_strangers(&mut self, table: &DeTable<'_>, section: &str, path: &str) {
        let names = keys::names_in(section);
        for (name, _) in table.iter() {
            let (span, name) = (name.span(), name.get_ref().as_ref());
            if names.contains(&name) || self.problems.len() >= MOST_PROBLEMS {
                continue;
            }
            let key = if path.is_empty() {
                name.to_owned()
            } else {
                format!("{path}.{name}")
            };
            let place = self.text.place(&span);
            if section.is_empty() && keys::LATER.contains(&name) {
                self.wrong(place, key, "is not in this version; take it out");
                continue;
            }
            let what = if section.is_empty() { "section" } else { "key" };
            let help = match (keys::nearest(name, names.iter().copied()), lives_in(name)) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, Some(home)) => format!("it belongs into [{home}]"),
                (None, None) => format!("there are {}", names.join(", ")),
            };
            self.wrong(place, key, format!("there is no such {what}")).help = Some(help);
        }
    }

    /// Lets the variables of a store mean something, though it is not read.
    pub fn know_store(&mut self, path: &str) {
        for name in keys::names_in("store") {
            if let Some(variable) = keys::variable(&format!("{path}.{name}")) {
                self.known.extend([format!("{variable}_FILE"), variable]);
            }
        }
    }

    /// Refuses variables that look like ours and mean nothing.
    pub fn refuse_strange_variables(&mut self) {
        let environment = self.environment;
        for name in environment.ours().filter(|name| environment.get(name).is_some()) {
            if self.known.contains(name) {
                continue;
            }
            let help = match keys::nearest(name, self.known.iter().map(String::as_str)) {
                _ if name.starts_with("POSTHOUSE_ROUTE__") => "routes are set in the file alone".to_owned(),
                Some(near) => format!("did you mean {near}?"),
                None => "see docs/configuration.md for those that there are".to_owned(),
            };
            let problem = Problem::new(
                Place::Variable(name.to_owned()),
                "",
                format!("{name} sets no key that there is"),
            );
            self.problems.push(problem.help(Some(help)));
        }
    }

    /// A secret from a variable.
    pub fn secret_in(&self, variable: &str) -> Result<Secret, String> {
        // Somebody may have written the secret itself here.
        let is_name = variable.len() <= 128
            && variable
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        if variable.is_empty() || !is_name {
            return Err("must be the name of a variable: capital letters, digits and _".to_owned());
        }
        let text = self.environment.get(variable).ok_or(format!("{variable} is not set"))?;
        secret::fit(text).map_err(|problem| format!("{variable} {problem}"))
    }

    /// A secret from a file, whose path begins in the folder of the configuration.
    pub fn secret_at(&mut self, path: &str) -> Result<Secret, String> {
        let path = self.folder.join(path);
        let read = secret::from_file(&path);
        self.files.push(path);
        read
    }
}

/// Nobody reads further; and finding the place of each takes time.
pub const MOST_PROBLEMS: usize = 100;

/// The section that a key of this name is in.
fn lives_in(name: &str) -> Option<&'static str> {
    keys::KEYS.iter().find(|key| key.name() == name).map(Key::section)
}

/// A section that is being read.
pub struct Section<'s> {
    /// As it stands in the file: `route[0]`.
    pub path: String,
    /// As it stands in the list of keys: `route`.
    kind: &'static str,
    table: Option<&'s DeTable<'s>>,
    /// Where it begins in the file.
    span: Option<Range<usize>>,
}

impl<'s> Section<'s> {
    /// The section of this kind at this path. Refuses what is no table, and names that nothing reads.
    pub fn open(
        reader: &mut Reader<'_>,
        kind: &'static str,
        path: String,
        value: Option<&'s Spanned<DeValue<'s>>>,
    ) -> Self {
        let table = value.and_then(|value| value.get_ref().as_table());
        let span = value.map(Spanned::span);
        if let Some(table) = table {
            reader.refuse_strangers(table, kind, &path);
        } else if let Some(span) = &span {
            let place = reader.text.place(span);
            reader.wrong(place, path.clone(), "must be a table with keys");
        }
        Self {
            path,
            kind,
            table,
            span,
        }
    }

    /// A table in it.
    pub fn child(&self, reader: &mut Reader<'_>, kind: &'static str, name: &str) -> Self {
        let path = format!("{}.{name}", self.path);
        Self::open(reader, kind, path, self.raw(name).map(|(_, value)| value))
    }

    /// A section in it of which nothing is written.
    pub fn nothing(&self, kind: &'static str, name: &str) -> Self {
        let path = format!("{}.{name}", self.path);
        let (table, span) = (None, self.span.clone());
        Self {
            path,
            kind,
            table,
            span,
        }
    }

    /// As it stands in the list of keys.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// What is written under a name.
    pub fn raw(&self, name: &str) -> Option<(Range<usize>, &'s Spanned<DeValue<'s>>)> {
        let (key, value) = self.table?.get_key_value(name)?;
        Some((key.span(), value))
    }

    /// Where a key is set: in the environment, in the file; else where its section begins.
    pub fn place(&self, reader: &Reader<'_>, name: &str) -> Place {
        if let Some(variable) = self.variable(name).filter(|v| reader.environment.get(v).is_some()) {
            return Place::Variable(variable);
        }
        let span = self.raw(name).map(|(_, value)| value.span()).or(self.span.clone());
        match span {
            Some(span) => reader.text.place(&span),
            None => Place::File(reader.text.file.to_owned()),
        }
    }

    /// Puts down that a key's value is wrong.
    pub fn refuse<'r>(&self, reader: &'r mut Reader<'_>, name: &str, message: impl Into<String>) -> &'r mut Problem {
        let place = self.place(reader, name);
        reader.wrong(place, format!("{}.{name}", self.path), message)
    }

    fn variable(&self, name: &str) -> Option<String> {
        keys::variable(&format!("{}.{name}", self.path)).filter(|_| !self.kind.starts_with("route"))
    }

    /// Whether somebody set it.
    pub fn is_set(&self, reader: &Reader<'_>, name: &str) -> bool {
        let variable = self
            .variable(name)
            .is_some_and(|v| reader.environment.get(&v).is_some());
        variable || self.raw(name).is_some()
    }

    /// A key's value, from the strongest who sets it. A value that is refused is put down, and the default holds.
    pub fn get(&self, reader: &mut Reader<'_>, name: &str) -> Option<Value> {
        let (value, source) = self.look(reader, name)?;
        self.put(reader, name, value.clone(), source);
        Some(value)
    }

    /// The same, without putting it down as in force.
    pub fn look(&self, reader: &mut Reader<'_>, name: &str) -> Option<(Value, Source)> {
        let key = keys::find(self.kind, name)?;
        if let Some(found) = self.in_environment(reader, key) {
            return Some(found);
        }
        if let Some((_, written)) = self.raw(name) {
            match key.kind.take(written.get_ref()) {
                Ok(value) => {
                    let (file, line) = (reader.text.file.to_owned(), reader.text.line(written.span().start));
                    return Some((value, Source::File { file, line }));
                }
                Err(problem) => {
                    self.refuse(reader, name, problem);
                }
            }
        }
        let default = key.kind.take_text(key.default.trim_matches('"')).ok();
        default
            .filter(|_| !key.default.is_empty())
            .map(|value| (value, Source::Default))
    }

    /// Puts down what is in force.
    pub fn put(&self, reader: &mut Reader<'_>, name: &str, value: Value, source: Source) {
        if let Some(key) = keys::find(self.kind, name) {
            let section = self.path.clone();
            reader.settings.push(Setting {
                section,
                key,
                value,
                source,
            });
        }
    }

    fn in_environment(&self, reader: &mut Reader<'_>, key: &Key) -> Option<(Value, Source)> {
        let variable = self.variable(key.name())?;
        let by_file = format!("{variable}_FILE");
        let given = reader.environment.get(&variable).map(str::to_owned);
        reader.known.insert(variable.clone());
        if key.hidden && key.kind == Kind::Text {
            reader.known.insert(by_file.clone());
            if let Some(path) = reader.environment.get(&by_file).map(str::to_owned) {
                if given.is_some() {
                    let message = format!("{variable} and {by_file} are both set; unset one");
                    reader.wrong(
                        Place::Variable(by_file.clone()),
                        format!("{}.{}", self.path, key.name()),
                        message,
                    );
                }
                let path = PathBuf::from(path);
                let read = secret::from_file(&path);
                reader.files.push(path);
                return match read {
                    Ok(secret) => Some((Value::Text(secret.expose().to_owned()), Source::Variable(by_file))),
                    Err(problem) => {
                        reader.wrong(
                            Place::Variable(by_file),
                            format!("{}.{}", self.path, key.name()),
                            problem,
                        );
                        None
                    }
                };
            }
        }
        match key.kind.take_text(&given?) {
            Ok(value) => Some((value, Source::Variable(variable))),
            Err(problem) => {
                reader.wrong(
                    Place::Variable(variable),
                    format!("{}.{}", self.path, key.name()),
                    problem,
                );
                None
            }
        }
    }

    /// A whole number.
    pub fn whole(&self, reader: &mut Reader<'_>, name: &str) -> Option<u64> {
        match self.get(reader, name)? {
            Value::Whole(n) => Some(n),
            _ => None,
        }
    }

    /// A whole number that has a default, as small as its range says.
    pub fn number<T: TryFrom<u64> + Default>(&self, reader: &mut Reader<'_>, name: &str) -> T {
        let number = self.whole(reader, name).unwrap_or_default();
        T::try_from(number).unwrap_or_default()
    }

    /// A number of milliseconds that has a default.
    pub fn millis(&self, reader: &mut Reader<'_>, name: &str) -> Duration {
        Duration::from_millis(self.number(reader, name))
    }

    /// A number of days, or never.
    pub fn days(&self, reader: &mut Reader<'_>, name: &str) -> Option<Duration> {
        let days = self.whole(reader, name)?;
        Some(Duration::from_secs(days * 24 * 3600))
    }

    /// A number.
    pub fn real(&self, reader: &mut Reader<'_>, name: &str) -> Option<f64> {
        match self.get(reader, name)? {
            Value::Real(x) => Some(x),
            _ => None,
        }
    }

    /// A switch.
    pub fn switch(&self, reader: &mut Reader<'_>, name: &str) -> Option<bool> {
        match self.get(reader, name)? {
            Value::Switch(on) => Some(on),
            _ => None,
        }
    }

    /// Text.
    pub fn text(&self, reader: &mut Reader<'_>, name: &str) -> Option<String> {
        text_of(self.get(reader, name)?)
    }

    /// A list of texts.
    pub fn texts(&self, reader: &mut Reader<'_>, name: &str) -> Vec<String> {
        match self.get(reader, name) {
            Some(Value::List(all)) => all.into_iter().filter_map(text_of).collect(),
            _ => Vec::new(),
        }
    }

    /// Names with whole numbers.
    pub fn whole_of<T: TryFrom<u64>>(&self, reader: &mut Reader<'_>, name: &str) -> BTreeMap<String, T> {
        let Some(Value::Map(all)) = self.get(reader, name) else {
            return BTreeMap::new();
        };
        let number = |value| match value {
            Value::Whole(n) => T::try_from(n).ok(),
            _ => None,
        };
        all.into_iter()
            .filter_map(|(name, value)| Some((name, number(value)?)))
            .collect()
    }
}

/// Text that a value holds.
pub fn text_of(value: Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}
