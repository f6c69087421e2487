//! What a saga does: its steps, what undoes them, and in which order. Immutable, and known by its hash.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt, time::Duration};

use crate::{Backoff, Digest, Invalid, Limits, RetryPolicy, message::check_text};

/// The most steps of a saga.
pub const MOST_STEPS: usize = 100;
/// The longest name of a step.
const STEP_NAME_BYTES: usize = 64;
/// The longest name of a saga: it is part of the topics of its functions.
const NAME_BYTES: usize = 128;
/// The name by which a step takes the input of the saga itself.
pub const INPUT: &str = "input";

/// A saga as it is written down, in JSON or TOML, or put together in Rust: see [`Declared::compile`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// What it is called.
    pub name: String,
    /// Raised whenever anything below changes: sagas that have begun go on as they began.
    pub version: u32,
    /// How long it may take before it is undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The steps, in order.
    pub steps: Vec<DeclaredStep>,
}

/// A step as it is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredStep {
    /// What it is called.
    pub name: String,
    /// Where it is done: `https://...`, `http://...` or `fn:name`.
    pub action_uri: String,
    /// Where it is undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensate_uri: Option<String>,
    /// Where to ask whether it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify_uri: Option<String>,
    /// Whether it may be sent again under the same key when nobody knows whether it was done.
    #[serde(default)]
    pub idempotent: bool,
    /// How long one attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long after an attempt without an answer the participant is asked (`verify_uri`) whether the step was done. Without this:
    /// `timeout_ms`, or 12 s if the step has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify_after_ms: Option<u64>,
    /// How long after the steps before it does it begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// How often and how soon it is tried again.
    #[serde(default)]
    pub retry: Retry,
    /// The same for undoing it.
    #[serde(default)]
    pub compensate_retry: Retry,
    /// Neighbours of the same tag run side by side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_tag: Option<String>,
    /// The steps before it. Without this and `input`: the one that is declared before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<String>>,
    /// What it is given: the output of a step, a list of such, or (`"input"`, and when nothing is said) the saga's own input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<InputNames>,
    /// Once it is done, or may be, the saga only goes forward.
    #[serde(default)]
    pub pivot: bool,
    /// Whether a person has to agree first.
    #[serde(default, skip_serializing_if = "is_false")]
    pub approval: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// What a step is given, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum InputNames {
    /// One value.
    One(String),
    /// A list of values.
    Many(Vec<String>),
}

/// How often and how soon something is tried again: 6 attempts, after 1, 2, 4, ... seconds, at most a minute, give or take a fifth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// Attempts in all.
    pub max_attempts: u32,
    /// The first wait.
    pub base_ms: u64,
    /// What each wait is multiplied by.
    pub factor: f64,
    /// The part of a wait that chance may add or take.
    pub jitter: f64,
    /// The longest wait.
    pub cap_ms: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 6,
            base_ms: 1000,
            factor: 2.0,
            jitter: 0.2,
            cap_ms: 60_000,
        }
    }
}

impl Retry {
    /// As the engine uses it. No wait is shorter than the first, give or take.
    pub fn policy(&self) -> RetryPolicy {
        RetryPolicy {
            max_attempts: Some(self.max_attempts),
            backoff: Backoff::Exponential {
                base: Duration::from_millis(self.base_ms),
                factor: self.factor,
                cap: Duration::from_millis(self.cap_ms),
                jitter: self.jitter,
                floor: Duration::from_millis(1),
            },
            ..RetryPolicy::default()
        }
    }

    fn check(&self, step: &str, field: &'static str) -> Result<(), Invalid> {
        let refused = |problem: String| Err(Invalid::new(field, format!("of step {step:?}: {problem}")));
        // With jitter a wait may be twice as long.
        let longest = Limits::FARTHEST.as_millis() as u64 / 2;
        if self.max_attempts == 0 || self.max_attempts > Limits::ATTEMPTS {
            return refused(format!("max_attempts must be between 1 and {}", Limits::ATTEMPTS));
        }
        if !(1.0..=1000.0).contains(&self.factor) {
            return refused("factor must be between 1 and 1000".into());
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return refused("jitter must be between 0 and 1".into());
        }
        if self.base_ms > longest || self.cap_ms > longest {
            return refused("waits must be at most five years".into());
        }
        Ok(())
    }
}

/// What a step is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The input of the saga.
    Saga,
    /// The output of this step.
    Step(usize),
}

/// What a step is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// One value.
    One(Source),
    /// A list of values.
    Many(Vec<Source>),
}

impl Input {
    /// Where it comes from.
    pub fn sources(&self) -> &[Source] {
        match self {
            Self::One(source) => std::slice::from_ref(source),
            Self::Many(sources) => sources,
        }
    }

    /// Whether it holds the output of this step.
    pub fn takes(&self, step: usize) -> bool {
        self.sources().contains(&Source::Step(step))
    }
}

/// A step of a saga.
#[derive(Clone, Debug, PartialEq)]
pub struct StepDef {
    /// What it is called.
    pub name: String,
    /// The topic under which it is done.
    pub action: String,
    /// The topic under which it is undone.
    pub compensate: Option<String>,
    /// The topic under which it is asked whether it was done.
    pub verify: Option<String>,
    /// Whether it may be sent again under the same key when nobody knows whether it was done.
    pub idempotent: bool,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// How long after an attempt without an answer the participant is asked whether the step was done.
    pub verify_after: Duration,
    /// How long after the steps before it does it begin.
    pub delay: Duration,
    /// How often and how soon it is tried again.
    pub retry: RetryPolicy,
    /// The same for undoing it.
    pub compensate_retry: RetryPolicy,
    /// The steps before it.
    pub after: Vec<usize>,
    /// What it is given.
    pub input: Input,
    /// Once it is done, or may be, the saga only goes forward.
    pub pivot: bool,
}

/// A saga's definition, checked.
#[derive(Clone, PartialEq)]
pub struct Definition {
    declared: Declared,
    steps: Vec<StepDef>,
    /// Of each step, all that come before it.
    before: Vec<BTreeSet<usize>>,
    hash: Digest,
}

impl Declared {
    /// Reads it from JSON.
    pub fn from_json(text: &str) -> Result<Self, Invalid> {
        serde_json::from_str(text).map_err(|e| Invalid::new("definition", e.to_string()))
    }

    /// Checks it, and works out what was left unsaid.
    pub fn compile(self) -> Result<Definition, Invalid> {
        check_text("name", &self.name, NAME_BYTES)?;
        if !self.name.chars().all(is_name_char) {
            let problem = "holds something else than letters, digits, dots, dashes and underscores";
            return Err(Invalid::new("name", problem));
        }
        if self.version == 0 || i32::try_from(self.version).is_err() {
            return Err(Invalid::new("version", format!("must be between 1 and {}", i32::MAX)));
        }
        if self
            .deadline_ms
            .is_some_and(|ms| ms == 0 || Duration::from_millis(ms) > Limits::FARTHEST)
        {
            return Err(Invalid::new(
                "deadline_ms",
                "must be more than zero and at most ten years",
            ));
        }
        if self.steps.is_empty() || self.steps.len() > MOST_STEPS {
            let problem = format!("there must be between 1 and {MOST_STEPS}");
            return Err(Invalid::new("steps", problem));
        }
        let mut steps: Vec<StepDef> = Vec::with_capacity(self.steps.len());
        for (at, step) in self.steps.iter().enumerate() {
            let compiled = compile_step(&self.steps, at, step, &steps)?;
            steps.push(compiled);
        }
        check_pivot(&steps)?;
        let declared = explicit(self, &steps);
        Ok(Definition {
            hash: Digest::of_fields(&[json(&declared).as_bytes()]),
            declared,
            before: (0..steps.len()).map(|at| reach(&steps, at)).collect(),
            steps,
        })
    }
}

/// The same with everything said that follows from something else, so that what means the same is the same.
fn explicit(mut declared: Declared, steps: &[StepDef]) -> Declared {
    let names: Vec<String> = steps.iter().map(|step| step.name.clone()).collect();
    for (written, step) in declared.steps.iter_mut().zip(steps) {
        let of = |source: &Source| match source {
            Source::Saga => INPUT.to_owned(),
            Source::Step(at) => names[*at].clone(),
        };
        written.after = Some(step.after.iter().map(|at| names[*at].clone()).collect());
        written.input = Some(match &step.input {
            Input::One(source) => InputNames::One(of(source)),
            Input::Many(sources) => InputNames::Many(sources.iter().map(of).collect()),
        });
        written.concurrency_tag = None;
        written.verify_after_ms = step.verify.as_ref().map(|_| millis(step.verify_after));
        if written.compensate_uri.is_none() {
            written.compensate_retry = Retry::default();
        }
    }
    declared
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// In the order of the fields, so that what is the same is written in the same way.
fn json(declared: &Declared) -> String {
    serde_json::to_string(declared).unwrap_or_default()
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
}

fn compile_step(all: &[DeclaredStep], at: usize, step: &DeclaredStep, before: &[StepDef]) -> Result<StepDef, Invalid> {
    let name = step.name.as_str();
    if name.is_empty() || name.len() > STEP_NAME_BYTES || !name.chars().all(is_name_char) || name == INPUT {
        let problem = format!(
            "{:?} is not the name of a step: 1 to {STEP_NAME_BYTES} letters, digits, dots, dashes and underscores, and not \"{INPUT}\"",
            crate::text::excerpt(name, STEP_NAME_BYTES)
        );
        return Err(Invalid::new("name", problem));
    }
    if before.iter().any(|other| other.name == name) {
        return Err(Invalid::new("name", format!("{name:?} is the name of two steps")));
    }
    if step.approval {
        let problem = format!("of step {name:?}: waiting for a person comes with a later version");
        return Err(Invalid::new("approval", problem));
    }
    step.retry.check(name, "retry")?;
    step.compensate_retry.check(name, "compensate_retry")?;
    let time = |field: &'static str, ms: Option<u64>, most: Duration| match ms.map(Duration::from_millis) {
        Some(time) if time.is_zero() || time > most => Err(Invalid::new(
            field,
            format!("of step {name:?}: must be more than zero and at most {most:?}"),
        )),
        time => Ok(time),
    };
    if step.verify_after_ms.is_some() && step.verify_uri.is_none() {
        let problem = format!("of step {name:?}: nothing can be asked without verify_uri; add it, or remove this");
        return Err(Invalid::new("verify_after_ms", problem));
    }
    let timeout = time("timeout_ms", step.timeout_ms, Limits::LEASE)?;
    let verify_after = time("verify_after_ms", step.verify_after_ms, Limits::FARTHEST)?;
    let find = |field: &'static str, wanted: &str| {
        before.iter().position(|other| other.name == wanted).ok_or_else(|| {
            let problem = format!("of step {name:?}: {wanted:?} is not a step that is declared before it");
            Invalid::new(field, problem)
        })
    };
    let source = |wanted: &String| match wanted.as_str() {
        INPUT => Ok(Source::Saga),
        wanted => find("input", wanted).map(Source::Step),
    };
    let input = match &step.input {
        None => Input::One(Source::Saga),
        Some(InputNames::One(wanted)) => Input::One(source(wanted)?),
        Some(InputNames::Many(wanted)) => Input::Many(wanted.iter().map(source).collect::<Result<_, _>>()?),
    };
    let named = step.after.iter().flatten().map(|wanted| find("after", wanted));
    let mut after: BTreeSet<usize> = named.collect::<Result<_, _>>()?;
    let taken = input.sources().iter().filter_map(|source| match source {
        Source::Saga => None,
        Source::Step(at) => Some(*at),
    });
    after.extend(taken);
    if step.after.is_none() && after.is_empty() {
        after = follows(all, at, before);
    }
    Ok(StepDef {
        name: name.to_owned(),
        action: topic(name, "action_uri", &step.action_uri)?,
        compensate: optional_topic(name, "compensate_uri", step.compensate_uri.as_deref())?,
        verify: optional_topic(name, "verify_uri", step.verify_uri.as_deref())?,
        idempotent: step.idempotent,
        timeout,
        verify_after: verify_after.or(timeout).unwrap_or(USUAL_TIMEOUT),
        delay: time("delay_ms", step.delay_ms, Limits::FARTHEST)?.unwrap_or_default(),
        retry: step.retry.policy(),
        compensate_retry: step.compensate_retry.policy(),
        after: after.into_iter().collect(),
        input,
        pivot: step.pivot,
    })
}

/// In the order of declaration: after the one before it and those that run beside that one; or after the same as those that it runs beside.
fn follows(all: &[DeclaredStep], at: usize, before: &[StepDef]) -> BTreeSet<usize> {
    let tag = |at: usize| all[at].concurrency_tag.as_deref();
    let Some(last) = at.checked_sub(1) else {
        return BTreeSet::new();
    };
    if tag(at).is_some() && tag(at) == tag(last) {
        return before[last].after.iter().copied().collect();
    }
    let beside = (0..at)
        .rev()
        .take_while(|other| *other == last || tag(last).is_some() && tag(*other) == tag(last));
    beside.collect()
}

fn optional_topic(step: &str, field: &'static str, uri: Option<&str>) -> Result<Option<String>, Invalid> {
    uri.map(|uri| topic(step, field, uri)).transpose()
}

/// The topic of what a URI names.
fn topic(step: &str, field: &'static str, uri: &str) -> Result<String, Invalid> {
    let refused = |problem: &str| Err(Invalid::new(field, format!("of step {step:?}: {problem}")));
    let topic = match uri.split_once(':') {
        Some(("http" | "https", rest)) if rest.starts_with("//") => format!("http:{uri}"),
        Some(("fn", _)) => uri.to_owned(),
        Some(("bus" | "saga", _)) => return refused("bus: and saga: come with a later version"),
        _ => return refused("must begin with https://, http:// or fn:"),
    };
    if let Some(problem) = never_sent(uri) {
        return refused(problem);
    }
    match crate::message::check_topic(&topic) {
        Ok(()) => Ok(topic),
        Err(invalid) => refused(&invalid.problem),
    }
}

/// What would be found out only when it is sent, which of a compensation is late.
fn never_sent(uri: &str) -> Option<&'static str> {
    if uri.chars().any(char::is_whitespace) {
        return Some("holds a space; write %20");
    }
    let (_, rest) = uri.split_once("//")?;
    if rest.contains('#') {
        return Some("has a fragment (#), which is never sent");
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    };
    // That is refused with its own words.
    if authority.contains('@') {
        return None;
    }
    match port.map(str::parse::<u16>) {
        _ if host.is_empty() => Some("names no host"),
        Some(Err(_)) => Some("has a port that is no number below 65536"),
        _ => None,
    }
}

/// There is one at most, and each other step is before it or after it, so that nothing fails beside it.
fn check_pivot(steps: &[StepDef]) -> Result<(), Invalid> {
    let mut pivots = (0..steps.len()).filter(|at| steps[*at].pivot);
    let Some(pivot) = pivots.next() else { return Ok(()) };
    if let Some(second) = pivots.next() {
        let (one, two) = (&steps[pivot].name, &steps[second].name);
        return Err(Invalid::new(
            "pivot",
            format!("of step {two:?}: {one:?} is the pivot already"),
        ));
    }
    let before = reach(steps, pivot);
    for at in (0..steps.len()).filter(|at| *at != pivot && !before.contains(at)) {
        if !reach(steps, at).contains(&pivot) {
            let problem = format!(
                "of step {:?}: step {:?} runs beside it; every other step must be before it or after it",
                steps[pivot].name, steps[at].name
            );
            return Err(Invalid::new("pivot", problem));
        }
    }
    Ok(())
}

/// All that is before a step.
fn reach(steps: &[StepDef], of: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut todo = steps[of].after.clone();
    // Ends: each is looked at once.
    while let Some(at) = todo.pop() {
        if found.insert(at) {
            todo.extend(&steps[at].after);
        }
    }
    found
}

/// How long a relay waits for an answer under the lease that it has unless told otherwise.
const USUAL_TIMEOUT: Duration = Duration::from_secs(12);

/// Something that will hurt one day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The step.
    pub step: String,
    /// What is to be expected of it.
    pub problem: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {:?}: {}", self.step, self.problem)
    }
}

impl Definition {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.declared.name
    }

    /// Its version.
    pub fn version(&self) -> u32 {
        self.declared.version
    }

    /// What tells it from every other: the hash of [`json`](Self::json).
    pub fn hash(&self) -> Digest {
        self.hash
    }

    /// Its steps.
    pub fn steps(&self) -> &[StepDef] {
        &self.steps
    }

    /// How long it may take before it is undone.
    pub fn deadline(&self) -> Option<Duration> {
        self.declared.deadline_ms.map(Duration::from_millis)
    }

    /// Where in the list a step is.
    pub fn find(&self, step: &str) -> Option<usize> {
        self.steps.iter().position(|def| def.name == step)
    }

    /// The step after which it only goes forward.
    pub fn pivot(&self) -> Option<usize> {
        self.steps.iter().position(|step| step.pivot)
    }

    /// All steps for which this one is done first.
    pub fn behind(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.steps.len()).filter(move |at| self.before[*at].contains(&of))
    }

    /// All steps that are done before this one.
    pub fn before(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        self.before[of].iter().copied()
    }

    /// As it is kept: JSON, from which [`parse`](Self::parse) makes the same again.
    pub fn json(&self) -> String {
        json(&self.declared)
    }

    /// Reads what is kept.
    pub fn parse(json: &str) -> Result<Self, Invalid> {
        Declared::from_json(json)?.compile()
    }

    /// The refusal of a definition whose name and version are known with another content.
    pub fn known_otherwise(&self) -> Invalid {
        let (name, version) = (self.name(), self.version());
        Invalid::new(
            "version",
            format!("{version} of saga {name:?} is known with another content; raise the version"),
        )
    }

    /// Whether it is past the pivot when this step begins.
    fn is_after_pivot(&self, step: usize) -> bool {
        self.pivot() == Some(step) || !self.is_up_to_pivot(step)
    }

    /// Whether a step is the pivot, or comes before it: the deadline turns back a saga that has not begun it. Without a pivot every step is.
    pub fn is_up_to_pivot(&self, step: usize) -> bool {
        self.pivot().is_none_or(|pivot| !self.before[step].contains(&pivot))
    }

    /// What an engineer would object to.
    pub fn lint(&self) -> Vec<Warning> {
        let warn = |step: &StepDef, problem: &str| Warning {
            step: step.name.clone(),
            problem: problem.to_owned(),
        };
        let mut warnings = Vec::new();
        for (at, step) in self.steps.iter().enumerate() {
            if !step.idempotent && step.verify.is_none() {
                let problem = "neither idempotent nor verifiable: whenever nobody knows whether it was done (a timeout, a crash), the saga is held until a person says so";
                warnings.push(warn(step, problem));
            }
            if let Some(timeout) = step.timeout.filter(|timeout| *timeout > USUAL_TIMEOUT) {
                let problem = format!(
                    "an attempt may take {timeout:?}, and relays with the usual lease of 15 s wait for 12 s: give those that do it a longer one ([outbox] lease_ms)"
                );
                warnings.push(warn(step, &problem));
            }
            if let (Some(_), Some(timeout)) = (&step.verify, step.timeout)
                && step.verify_after < timeout
            {
                let (after, most) = (step.verify_after, timeout);
                let problem = format!(
                    "verify_after_ms asks {after:?} after an attempt without an answer, sooner than its timeout of {most:?}: a participant that is still at work answers that it was not done"
                );
                warnings.push(warn(step, &problem));
            }
            match (self.is_after_pivot(at), &step.compensate) {
                (false, None) => warnings.push(warn(
                    step,
                    "nothing compensates it: if the saga goes back, what it did stays",
                )),
                (true, Some(_)) => warnings.push(warn(
                    step,
                    "its compensation is sent only if a person asks for it: at and after the pivot a saga goes forward",
                )),
                _ => {}
            }
        }
        warnings
    }
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Definition({} v{} {})", self.name(), self.version(), self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str) -> DeclaredStep {
        serde_json::from_value(serde_json::json!({ "name": name, "action_uri": format!("fn:{name}") })).unwrap()
    }

    fn tagged(name: &str, tag: &str) -> DeclaredStep {
        DeclaredStep {
            concurrency_tag: Some(tag.into()),
            ..step(name)
        }
    }

    fn declared(steps: Vec<DeclaredStep>) -> Declared {
        Declared {
            name: "trip".into(),
            version: 1,
            deadline_ms: None,
            steps,
        }
    }

    fn compiled(steps: Vec<DeclaredStep>) -> Definition {
        declared(steps).compile().unwrap()
    }

    fn graph(definition: &Definition) -> Vec<Vec<usize>> {
        definition.steps().iter().map(|step| step.after.clone()).collect()
    }

    fn refusal(steps: Vec<DeclaredStep>) -> String {
        declared(steps).compile().unwrap_err().to_string()
    }

    #[test]
    fn steps_follow_each_other_as_declared() {
        let all = compiled(vec![step("a"), step("b"), step("c")]);
        assert_eq!(graph(&all), [vec![], vec![0], vec![1]]);
    }

    #[test]
    fn neighbours_of_one_tag_run_side_by_side() {
        let all = compiled(vec![
            step("a"),
            tagged("b", "x"),
            tagged("c", "x"),
            step("d"),
            tagged("e", "x"),
        ]);
        assert_eq!(graph(&all), [vec![], vec![0], vec![0], vec![1, 2], vec![3]]);
        let first = compiled(vec![
            tagged("a", "x"),
            tagged("b", "x"),
            tagged("c", "y"),
            tagged("d", "y"),
        ]);
        assert_eq!(graph(&first), [vec![], vec![], vec![0, 1], vec![0, 1]]);
    }

    #[test]
    fn what_is_said_replaces_the_order_of_declaration() {
        let mut three = vec![step("a"), step("b"), step("c")];
        three[1].after = Some(vec![]);
        three[2].input = Some(InputNames::Many(vec!["input".into(), "a".into()]));
        let all = compiled(three);
        assert_eq!(graph(&all), [vec![], vec![], vec![0]]);
        assert_eq!(all.steps()[2].input, Input::Many(vec![Source::Saga, Source::Step(0)]));
    }

    #[test]
    fn what_means_the_same_is_the_same() {
        let mut said = vec![step("a"), step("b")];
        said[1].after = Some(vec!["a".into()]);
        said[1].input = Some(InputNames::One("input".into()));
        let (said, unsaid) = (compiled(said), compiled(vec![step("a"), step("b")]));
        assert_eq!(said.hash(), unsaid.hash());
        assert_ne!(unsaid.hash(), compiled(vec![step("b"), step("a")]).hash());
        let again = Definition::parse(&said.json()).unwrap();
        assert_eq!((again.hash(), graph(&again)), (said.hash(), graph(&said)));
    }

    #[test]
    fn addresses_become_topics() {
        let mut one = step("a");
        one.action_uri = "https://air.example/book".into();
        one.compensate_uri = Some("fn:undo".into());
        let all = compiled(vec![one]);
        assert_eq!(all.steps()[0].action, "http:https://air.example/book");
        assert_eq!(all.steps()[0].compensate.as_deref(), Some("fn:undo"));
        for (uri, problem) in [
            ("ftp://x", "must begin with"),
            ("fn:", "names no destination"),
            ("https://u:p@x/", "user name or password"),
            ("http://", "names no host"),
            ("https://:80/x", "names no host"),
            ("http://x:99999/", "no number below 65536"),
            ("http://x/a b", "holds a space"),
            ("fn:a b", "holds a space"),
            ("https://x/y#z", "fragment"),
            ("bus:orders", "later version"),
            ("book", "must begin with"),
        ] {
            let mut one = step("a");
            one.action_uri = uri.into();
            let said = refusal(vec![one]);
            assert!(
                said.starts_with("action_uri: of step \"a\"") && said.contains(problem),
                "{said}"
            );
        }
    }

    #[test]
    fn refusals_name_step_and_field() {
        assert!(refusal(vec![step("a"), step("a")]).contains("two steps"));
        assert!(refusal(vec![step("input")]).contains("not the name of a step"));
        assert!(refusal(vec![]).starts_with("steps: "));
        let mut later = vec![step("a"), step("b")];
        later[0].after = Some(vec!["b".into()]);
        assert_eq!(
            refusal(later),
            "after: of step \"a\": \"b\" is not a step that is declared before it"
        );
        let mut never = step("a");
        never.retry.max_attempts = 0;
        assert!(refusal(vec![never]).starts_with("retry: of step \"a\": max_attempts"));
        let mut person = step("a");
        person.approval = true;
        assert!(refusal(vec![person]).starts_with("approval: of step \"a\""));
        let mut short = step("a");
        short.timeout_ms = Some(0);
        assert!(refusal(vec![short]).starts_with("timeout_ms: of step \"a\""));
        let mut unasked = step("a");
        unasked.verify_after_ms = Some(1000);
        assert_eq!(
            refusal(vec![unasked.clone()]),
            "verify_after_ms: of step \"a\": nothing can be asked without verify_uri; add it, or remove this"
        );
        (unasked.verify_uri, unasked.verify_after_ms) = (Some("fn:look".into()), Some(0));
        assert!(refusal(vec![unasked]).starts_with("verify_after_ms: of step \"a\": must be more than zero"));
    }

    #[test]
    fn participant_is_asked_after_the_timeout_unless_the_step_says_when() {
        let asked = |timeout_ms, verify_after_ms| {
            let mut one = step("a");
            (one.verify_uri, one.timeout_ms) = (Some("fn:look".into()), timeout_ms);
            one.verify_after_ms = verify_after_ms;
            compiled(vec![one])
        };
        let after = |definition: &Definition| definition.steps()[0].verify_after.as_millis();
        assert_eq!(after(&asked(None, None)), 12_000);
        assert_eq!(after(&asked(Some(500), None)), 500);
        assert_eq!(after(&asked(Some(500), Some(2000))), 2000);
        // It is part of the hash, whether it was written or follows from the timeout.
        assert_eq!(asked(Some(500), None).hash(), asked(Some(500), Some(500)).hash());
        assert_ne!(asked(Some(500), None).hash(), asked(Some(500), Some(501)).hash());
        let kept = asked(Some(500), Some(2000));
        assert_eq!(Definition::parse(&kept.json()).unwrap().hash(), kept.hash());
        let warnings = asked(Some(500), Some(100)).lint();
        let early = |warning: &Warning| warning.to_string().contains("verify_after_ms asks 100ms after");
        assert!(warnings.iter().any(early), "{warnings:?}");
        assert!(!asked(Some(500), None).lint().iter().any(early));
    }

    #[test]
    fn nothing_runs_beside_a_pivot() {
        let mut beside = vec![step("a"), tagged("b", "x"), tagged("c", "x")];
        beside[1].pivot = true;
        assert!(refusal(beside).contains("\"c\" runs beside it"));
        let mut two = vec![step("a"), step("b")];
        (two[0].pivot, two[1].pivot) = (true, true);
        assert!(refusal(two).contains("\"a\" is the pivot already"));
    }

    #[test]
    fn lint_tells_what_will_hurt() {
        let mut steps = vec![step("a"), step("b"), step("c")];
        steps[0].idempotent = true;
        steps[1].pivot = true;
        steps[1].verify_uri = Some("fn:look".into());
        steps[2].compensate_uri = Some("fn:undo".into());
        let warnings: Vec<_> = compiled(steps).lint().iter().map(ToString::to_string).collect();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[0].starts_with("step \"a\": nothing compensates it"));
        assert!(warnings[1].starts_with("step \"c\": neither idempotent nor verifiable"));
        assert!(warnings[2].starts_with("step \"c\": its compensation is sent only if a person asks"));
    }

    #[test]
    fn the_usual_waits_are_those_of_the_source() {
        let policy = Retry::default().policy();
        let waits: Vec<_> = (1..=8).map(|n| policy.wait(n, 0.5).as_millis()).collect();
        assert_eq!(waits, [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!((policy.max_attempts, policy.wait(1, 0.0).as_millis()), (Some(6), 800));
    }
}
