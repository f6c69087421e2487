//! A value as it was written, checked against its key's type, and where it came from.

use std::{collections::BTreeMap, fmt::Write as _};
use toml::de::{DeTable, DeValue};

use super::{keys::Kind, secret::Secret};

/// A value in force.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `true` or `false`.
    Switch(bool),
    /// A whole number.
    Whole(u64),
    /// A number.
    Real(f64),
    /// Text that everybody may read.
    Text(String),
    /// Text that may hold a secret, and what may be shown of it.
    Hidden(Secret, String),
    /// Several.
    List(Vec<Value>),
    /// Several, by name.
    Map(BTreeMap<String, Value>),
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// The file, at this line.
    File {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
    },
    /// A variable of the environment.
    Variable(String),
    /// A flag.
    Flag(&'static str),
}

impl Source {
    /// In a few words.
    pub fn words(&self) -> String {
        match self {
            Self::Default => "default".to_owned(),
            Self::File { file, line } => format!("{file}:{line}"),
            Self::Variable(name) => name.clone(),
            Self::Flag(flag) => (*flag).to_owned(),
        }
    }

    /// Its kind, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File { .. } => "file",
            Self::Variable(_) => "environment",
            Self::Flag(_) => "flag",
        }
    }
}

impl Value {
    /// As TOML, without what is hidden.
    pub fn toml(&self) -> String {
        match self {
            Self::Switch(on) => on.to_string(),
            Self::Whole(n) => n.to_string(),
            Self::Real(x) => format!("{x:?}"),
            Self::Text(text) | Self::Hidden(_, text) => quoted(text),
            Self::List(values) => {
                let all: Vec<_> = values.iter().map(Self::toml).collect();
                format!("[{}]", all.join(", "))
            }
            Self::Map(values) if values.is_empty() => "{}".to_owned(),
            Self::Map(values) => {
                let pair = |(name, value): (&String, &Self)| format!("{} = {}", name_in_toml(name), value.toml());
                format!("{{ {} }}", values.iter().map(pair).collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// As JSON, without what is hidden.
    pub fn json(&self) -> serde_json::Value {
        match self {
            Self::Switch(on) => (*on).into(),
            Self::Whole(n) => (*n).into(),
            Self::Real(x) => (*x).into(),
            Self::Text(text) | Self::Hidden(_, text) => text.as_str().into(),
            Self::List(values) => values.iter().map(Self::json).collect(),
            Self::Map(values) => values.iter().map(|(k, v)| (k.clone(), v.json())).collect(),
        }
    }
}

/// A text in quotes, with everything escaped that must be.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        // Writing to a String cannot fail.
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            c if c.is_control() => write!(out, "\\u{:04X}", c as u32),
            c => write!(out, "{c}"),
        };
    }
    out + "\""
}

/// A name as it may stand before an equals sign.
pub fn name_in_toml(name: &str) -> String {
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if plain { name.to_owned() } else { quoted(name) }
}

impl Kind {
    /// What is expected, in words.
    pub fn expected(self) -> String {
        match self {
            Self::Whole(least, most) => format!("a whole number from {least} to {most}"),
            Self::WholeOrNever(least, most) => format!("a whole number from {least} to {most}, or \"never\""),
            Self::Real(least, most) => format!("a number from {least:?} to {most:?}"),
            Self::Switch => "true or false".to_owned(),
            Self::Text => "text in quotes".to_owned(),
            Self::Word(words) => {
                let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
                match words.len() {
                    2 => words.join(" or "),
                    _ => format!("one of {}", words.join(", ")),
                }
            }
            Self::Texts => "a list of texts, for instance [\"a\", \"b\"]".to_owned(),
            Self::Wholes(least, most) => format!("a list of whole numbers from {least} to {most}"),
            Self::Waits => "a list of seconds, for instance [5, 10, 20]".to_owned(),
            Self::WholeOf(least, most) => {
                format!("names with whole numbers from {least} to {most}, for instance {{ acme = 3 }}")
            }
            Self::Headers => "names with texts, or with { env = \"NAME\" } or { file = \"PATH\" }".to_owned(),
        }
    }

    /// Takes a value of this type. What is refused is described by its type, and repeated only when it is a number.
    pub fn take(self, value: &DeValue<'_>) -> Result<Value, String> {
        let refused = || Err(format!("must be {}, and {}", self.expected(), self.described(value)));
        let text = |value: &DeValue<'_>| value.as_str().map(|text| Value::Text(text.to_owned()));
        let taken = match (self, value) {
            (Self::Switch, DeValue::Boolean(on)) => Some(Value::Switch(*on)),
            (Self::Text, value) => text(value),
            (Self::Word(words), value) => {
                text(value).filter(|v| matches!(v, Value::Text(t) if words.contains(&t.as_str())))
            }
            (Self::WholeOrNever(..), DeValue::String(word)) if word == "never" => Some(Value::Text("never".to_owned())),
            (Self::Whole(least, most) | Self::WholeOrNever(least, most), value) => whole(value, least, most),
            (Self::Real(least, most), value) => real(value).filter(|x| (least..=most).contains(x)).map(Value::Real),
            (Self::Texts, DeValue::Array(all)) => all
                .iter()
                .map(|one| text(one.get_ref()))
                .collect::<Option<_>>()
                .map(Value::List),
            (Self::Wholes(least, most), DeValue::Array(all)) => {
                let each = all.iter().map(|one| whole(one.get_ref(), least, most));
                each.collect::<Option<_>>().map(Value::List)
            }
            (Self::Waits, DeValue::Array(all)) if !all.is_empty() && all.len() <= 1000 => {
                let wait =
                    |value: &DeValue<'_>| real(value).filter(|x| (0.0..=2_592_000.0).contains(x)).map(Value::Real);
                let each = all.iter().map(|one| wait(one.get_ref()));
                each.collect::<Option<_>>().map(Value::List)
            }
            (Self::WholeOf(least, most), DeValue::Table(table)) => named(table, |value| whole(value, least, most)),
            (Self::Headers, DeValue::Table(table)) => named(table, header),
            _ => None,
        };
        taken.map_or_else(refused, Ok)
    }

    /// What a value is that is not taken. Text is not repeated.
    fn described(self, value: &DeValue<'_>) -> String {
        match (self, value) {
            (_, DeValue::Integer(n)) => format!("is {n}"),
            (_, DeValue::Float(x)) => format!("is {x}"),
            (_, DeValue::Boolean(on)) => format!("is {on}"),
            (_, DeValue::Datetime(_)) => "is a date".to_owned(),
            (Self::Word(_) | Self::WholeOrNever(..), DeValue::String(_)) => "is other text".to_owned(),
            (_, DeValue::String(_)) => "is text".to_owned(),
            (Self::Texts | Self::Wholes(..) | Self::Waits, DeValue::Array(all)) if !all.is_empty() => {
                "holds something else".to_owned()
            }
            (_, DeValue::Array(_)) => "is a list".to_owned(),
            (Self::WholeOf(..) | Self::Headers, DeValue::Table(_)) => "holds something else".to_owned(),
            (_, DeValue::Table(_)) => "is a table".to_owned(),
        }
    }

    /// Takes a value from the environment: text as it is, everything else as it would be written in the file.
    pub fn take_text(self, text: &str) -> Result<Value, String> {
        if matches!(self, Self::Text | Self::Word(_)) || (matches!(self, Self::WholeOrNever(..)) && text == "never") {
            return self.take(&DeValue::String(text.into()));
        }
        let refused = |_| format!("must be {}, and is something else", self.expected());
        let value = DeValue::parse(text.trim()).map_err(refused)?;
        self.take(value.get_ref())
    }
}

fn named(table: &DeTable<'_>, take: impl Fn(&DeValue<'_>) -> Option<Value>) -> Option<Value> {
    let pair = |name: &str, value: &DeValue<'_>| Some((name.to_owned(), take(value)?));
    let all: Option<_> = table
        .iter()
        .map(|(name, value)| pair(name.get_ref(), value.get_ref()))
        .collect();
    all.map(Value::Map)
}

/// Text, or one word that says where it is with its place.
fn header(value: &DeValue<'_>) -> Option<Value> {
    match value {
        DeValue::String(text) => Some(Value::Text(text.clone().into_owned())),
        DeValue::Table(table) if table.len() == 1 => {
            let (word, place) = table.iter().next()?;
            let known = matches!(word.get_ref().as_ref(), "env" | "file");
            let place = place.get_ref().as_str().filter(|_| known)?;
            Some(Value::Map(
                [(word.get_ref().to_string(), Value::Text(place.to_owned()))].into(),
            ))
        }
        _ => None,
    }
}

fn whole(value: &DeValue<'_>, least: u64, most: u64) -> Option<Value> {
    let number = value.as_integer()?;
    let number = u64::from_str_radix(number.as_str(), number.radix()).ok()?;
    (least..=most).contains(&number).then_some(Value::Whole(number))
}

/// A number that is one: not infinite, not "not a number".
fn real(value: &DeValue<'_>) -> Option<f64> {
    let number = match value {
        DeValue::Float(x) => x.as_str().parse().ok(),
        DeValue::Integer(n) => i64::from_str_radix(n.as_str(), n.radix()).ok().map(|n| n as f64),
        _ => None,
    };
    number.filter(|x: &f64| x.is_finite())
}
