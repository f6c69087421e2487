//! `posthouse saga`: looking at sagas, starting them, and deciding about those that wait for a person.

use posthouse::{
    Admin, AnyStore, Error, MessageId, SagaId, Store, Timestamp,
    explain::Cause,
    saga::{
        Definition, HeldReason, LogLine, SagaFilter, SagaPage, SagaRow, SagaState, SagaView, Start, Started, StepState,
        StepView, UndoState, Verb, drive, from_json, from_toml,
    },
};
use serde::Serialize;
use serde_json::{Value, json};
use std::{collections::VecDeque, fmt::Write as _, io::Read as _, path::Path, sync::Arc};

use crate::{
    cli::{Saga, SagaLint, SagaList, SagaRef, SagaShow, SagaStart, Sagas, WhichSagas, Who},
    exit::{Exit, Failure},
    output::{Output, Paint, cut, cut_or_dash, now, relative, visible},
    timeline::DETAIL,
};

/// Lines of a log that are shown.
const MOST_LINES: usize = 1000;
/// Those that are read at a time.
const PAGE_LINES: u32 = 1000;

/// `saga ...`
pub async fn run(asked: &Saga, store: &str, out: &Output) -> Result<(), Failure> {
    let step = |step: &String| step.clone();
    match asked {
        Saga::List(args) => list(args, store, out).await,
        Saga::Show(args) => show(args, store, out).await,
        Saga::Start(args) => start(args, store, out).await,
        Saga::Lint(args) => lint(args, out),
        Saga::Pause(args) => several(&args.sagas, &Verb::Pause, store, out).await,
        Saga::Resume(args) => several(&args.sagas, &Verb::Resume, store, out).await,
        Saga::Quarantine(args) => several(&args.sagas, &Verb::Quarantine, store, out).await,
        Saga::Abandon(args) => several(&args.sagas, &Verb::Abandon, store, out).await,
        Saga::Replay(args) if args.to_compensation => {
            several(&args.sagas, &Verb::Compensate { past_pivot: false }, store, out).await
        }
        Saga::Replay(args) => several(&args.sagas, &Verb::Replay { again: args.again }, store, out).await,
        Saga::Compensate(args) => {
            let past_pivot = args.past_pivot;
            several(&args.sagas, &Verb::Compensate { past_pivot }, store, out).await
        }
        Saga::Retry(args) => {
            one(
                &args.saga,
                &Verb::Retry { step: step(&args.step) },
                &args.who,
                store,
                out,
            )
            .await
        }
        Saga::Skip(args) => {
            one(
                &args.saga,
                &Verb::Skip { step: step(&args.step) },
                &args.who,
                store,
                out,
            )
            .await
        }
        Saga::Resolve(args) => {
            one(
                &args.saga,
                &Verb::Resolve { step: step(&args.step) },
                &args.who,
                store,
                out,
            )
            .await
        }
        Saga::Complete(args) => {
            let verb = Verb::Complete {
                output: json_of("output", &args.output)?,
                step: step(&args.step.step),
            };
            one(&args.step.saga, &verb, &args.step.who, store, out).await
        }
    }
}

fn json_of(what: &str, text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|e| {
        Failure::not_confirmed(format!("--{what}: is not JSON: {e}"))
            .help(format!("a text is JSON too, in quotes: --{what} '\"a\"'"))
    })
}

fn filter(which: &WhichSagas) -> SagaFilter {
    SagaFilter {
        namespace: which.namespace.clone(),
        tenant: which.tenant.clone(),
        name: which.name.clone(),
        key: which.key.clone(),
        state: which.state,
        reason: which.reason,
        ..SagaFilter::default()
    }
}

async fn list(args: &SagaList, store: &str, out: &Output) -> Result<(), Failure> {
    let filter = SagaFilter {
        below: args.before,
        limit: args.limit,
        ..filter(&args.which)
    };
    let page = AnyStore::open(store).await?.admin().sagas(&filter).await?;
    if page.sagas.is_empty() {
        out.note("No sagas.");
    } else if out.json {
        page.sagas.iter().try_for_each(|row| out.document(row))?;
    } else {
        out.data(&table(&page, out))?;
    }
    if let Some(next) = page.next {
        out.next_page(next, "limit", &format!("There may be more: add --before {next}"));
    }
    Ok(())
}

fn table(page: &SagaPage, out: &Output) -> String {
    let now = now();
    let row = |row: &SagaRow| {
        vec![
            row.id.to_string(),
            cut(&row.name, 24),
            cut(&row.key, 24),
            cut_or_dash(&row.tenant, 12),
            standing(row),
            relative(row.updated_at, now),
        ]
    };
    let heading = ["ID", "NAME", "KEY", "TENANT", "STATE", "CHANGED"];
    out.table(&heading, page.sagas.iter().map(row).collect())
}

/// Where it stands, in words.
fn standing(row: &SagaRow) -> String {
    if let Some(why) = &row.unreadable {
        return cut(&format!("unreadable: {why}"), 60);
    }
    let state = match row.reason {
        Some(reason) => format!("{}: {}", row.state, reason.as_str().replace('_', " ")),
        None => row.state.to_string(),
    };
    if row.paused { format!("{state}, paused") } else { state }
}

/// The saga that is meant.
async fn find(admin: &dyn Admin, saga: &SagaRef) -> Result<SagaId, Failure> {
    let (name, key) = match saga {
        SagaRef::Id(id) => return Ok(*id),
        SagaRef::Key { name, key } => (name, key),
    };
    let filter = SagaFilter {
        name: Some(name.clone()),
        key: Some(key.clone()),
        limit: 2,
        ..SagaFilter::default()
    };
    match admin.sagas(&filter).await?.sagas.as_slice() {
        [one] => Ok(one.id),
        [] => Err(
            Failure::not_found(format!("there is no saga {name:?} with the key {key:?}"))
                .help("see what there is: posthouse saga list"),
        ),
        _ => Err(Failure::not_confirmed(format!(
            "several sagas {name:?} have the key {key:?}, of different tenants or namespaces"
        ))
        .help(format!(
            "name one by its id: posthouse saga list --name {name} --key {key}"
        ))),
    }
}

/// What `saga show --json` writes.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    saga: &'a SagaView,
    log: &'a [LogLine],
    now: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Value>,
}

async fn show(args: &SagaShow, store: &str, out: &Output) -> Result<(), Failure> {
    let any = AnyStore::open(store).await?;
    let admin = any.admin();
    let id = find(&*admin, &args.saga).await?;
    let saga = drive::load(&*any.store(), id).await?;
    let log = newest(&*admin, id).await?;
    let view = saga.view();
    let payload = args.payload.then(|| {
        let named = view.steps.iter().zip(&saga.snapshot.steps);
        let outputs: serde_json::Map<_, _> = named
            .filter_map(|(view, step)| Some((view.name.clone(), step.output.clone()?)))
            .collect();
        json!({ "input": saga.snapshot.input, "outputs": outputs })
    });
    let now = under_way(&*admin, &view).await?;
    if out.json {
        let (saga, log) = (&view, log.as_slice());
        let now = now
            .into_iter()
            .map(|(step, cause)| json!({ "step": step, "cause": cause }));
        let now = now.collect();
        return out.document(&Document {
            saga,
            log,
            now,
            payload,
        });
    }
    let mut text = fields(&view, out);
    let now = now.into_iter().map(|(step, cause)| format!("{step}: {cause}"));
    text += &out.fields(std::iter::once("now").chain(std::iter::repeat("")).zip(now.map(Some)));
    // Writing to a String cannot fail.
    let _ = write!(text, "\n{}\n{}", steps(&view, out), timeline(&view, &log, out));
    if let Some(payload) = payload {
        let _ = write!(text, "\n{}\n", visible(&payload.to_string()));
    }
    out.data(&text)
}

/// What it waits for, while it waits for no person: why each of its messages is not delivered yet.
async fn under_way<'a>(admin: &dyn Admin, saga: &'a SagaView) -> Result<Vec<(&'a str, Cause)>, Failure> {
    let mut found = Vec::new();
    if !matches!(saga.row.state, SagaState::Running | SagaState::Compensating) || saga.row.paused {
        return Ok(found);
    }
    for step in &saga.steps {
        let Some(message) = step.message else { continue };
        match admin.explain(message).await {
            Ok(causes) => found.extend(causes.into_iter().map(|cause| (step.name.as_str(), cause)).take(1)),
            // It has moved on meanwhile.
            Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// The last lines of its log.
async fn newest(admin: &dyn Admin, id: SagaId) -> Result<Vec<LogLine>, Failure> {
    let (mut log, mut after) = (VecDeque::new(), 0);
    // Ends: lines rise.
    loop {
        let page = admin.saga_log(id, after, PAGE_LINES).await?;
        let Some(last) = page.last() else { break };
        after = last.n;
        log.extend(page);
        let more = log.len().saturating_sub(MOST_LINES);
        log.drain(..more);
    }
    Ok(log.into())
}

fn fields(saga: &SagaView, out: &Output) -> String {
    let (row, now) = (&saga.row, now());
    let time = |at: Timestamp| format!("{at} ({})", relative(at, now));
    out.fields([
        ("id", Some(row.id.to_string())),
        ("saga", Some(format!("{}, version {}", row.name, row.version))),
        ("key", Some(row.key.clone())),
        ("tenant", Some(row.tenant.clone()).filter(|tenant| !tenant.is_empty())),
        (
            "namespace",
            Some(row.namespace.clone()).filter(|name| name != "default"),
        ),
        ("state", Some(standing(row))),
        ("note", saga.note.clone()),
        ("goes back", saga.cause.clone()),
        ("started", Some(time(row.created_at))),
        ("changed", Some(time(row.updated_at))),
        ("ended", row.finished_at.map(time)),
    ]) + &hints(saga, out)
}

fn hints(saga: &SagaView, out: &Output) -> String {
    let labels = std::iter::once("next").chain(std::iter::repeat("or"));
    out.fields(labels.zip(next(saga)).map(|(label, command)| (label, Some(command))))
}

/// What an operator may want to do: commands as they can be typed, but for a value that is for him to fill in.
fn next(saga: &SagaView) -> Vec<String> {
    let stuck = saga.steps.iter().find(|step| step.stuck.is_some());
    // What began last is undone first.
    let failed =
        saga.steps.iter().rev().find(|step| {
            step.compensation == UndoState::Held || matches!(step.code.as_deref(), Some("late" | "in_doubt"))
        });
    let id = saga.row.id;
    let command = |words: String| format!("posthouse saga {words} --note TEXT");
    // Nothing else is allowed before it.
    if saga.row.paused || saga.note.is_some() {
        let resume = command(format!("resume {id}"));
        return Some(resume).filter(|_| !saga.row.state.is_over()).into_iter().collect();
    }
    if saga.row.state != SagaState::Held {
        return Vec::new();
    }
    let past = if saga.past_pivot { " --past-pivot" } else { "" };
    let back = command(format!("compensate {id}{past}"));
    match (stuck, failed) {
        // To complete the step itself would say that it was done, and it was never sent.
        (Some(step), _) if step.stuck == Some(HeldReason::Output) => {
            let lost = |name: &&String| saga.steps.iter().any(|step| step.name == **name && step.output_lost);
            let lacking: Vec<_> = step.takes.iter().filter(lost).collect();
            let from = if lacking.is_empty() {
                step.takes.iter().collect()
            } else {
                lacking
            };
            let smaller = from
                .into_iter()
                .map(|name| command(format!("complete {id} {name} --output JSON")));
            smaller.chain([back]).collect()
        }
        (Some(step), _) => {
            let name = &step.name;
            let taken = saga.steps.iter().any(|later| later.takes.contains(name));
            let mut all = vec![
                command(format!("retry {id} {name}")),
                command(format!("complete {id} {name} --output JSON")),
            ];
            // It waits because to send it again may do it twice: what was found out comes first.
            if step.stuck == Some(HeldReason::Unknown) {
                all.reverse();
            }
            all.extend((!taken).then(|| command(format!("skip {id} {name}"))));
            all.push(back);
            all
        }
        (None, Some(step)) => {
            // A question about a pivot that nothing undoes is a dead letter, and can be asked again.
            let again = step.compensation != UndoState::None || step.message.is_some();
            let retry = again.then(|| command(format!("retry {id} {}", step.name)));
            let held = saga.steps.iter().filter(|step| step.compensation == UndoState::Held);
            let all = (held.count() > 1).then(|| command(format!("replay {id}")));
            all.into_iter()
                .chain(retry)
                .chain([command(format!("resolve {id} {}", step.name))])
                .collect()
        }
        (None, None) => Vec::new(),
    }
}

/// The steps, those that run side by side together, each below what it waits for.
fn steps(saga: &SagaView, out: &Output) -> String {
    let depth = depths(saga);
    let width = saga.steps.iter().map(|step| step.name.len()).max().unwrap_or(0).min(32);
    let last = depth.iter().max().copied().unwrap_or(0);
    let mut text = String::new();
    for level in 0..=last {
        let here: Vec<_> = saga
            .steps
            .iter()
            .zip(&depth)
            .filter(|(_, depth)| **depth == level)
            .collect();
        for (at, (step, _)) in here.iter().enumerate() {
            let (branch, width) = match (here.len(), at + 1 == here.len()) {
                (1, _) => ("", width + 2),
                (_, false) => ("├ ", width),
                (_, true) => ("└ ", width),
            };
            let _ = writeln!(text, "  {branch}{}", line(step, width, out));
        }
        if level < last {
            let _ = writeln!(text, "  │");
        }
    }
    text
}

/// How many steps, one after the other, come before each.
fn depths(saga: &SagaView) -> Vec<usize> {
    let mut depths: Vec<usize> = Vec::with_capacity(saga.steps.len());
    for step in &saga.steps {
        let before = step
            .after
            .iter()
            .filter_map(|name| saga.steps.iter().position(|other| other.name == *name));
        let deepest = before.filter_map(|at| depths.get(at)).max();
        depths.push(deepest.map_or(0, |depth| depth + 1));
    }
    depths
}

fn line(step: &StepView, width: usize, out: &Output) -> String {
    let (mark, paint) = match step.state {
        StepState::Done => ("✓", Paint::Green),
        StepState::Rejected | StepState::NotDone => ("✗", Paint::Red),
        StepState::Uncertain => ("?", Paint::Red),
        StepState::Running => ("▸", Paint::Cyan),
        StepState::Ready => ("▹", Paint::Cyan),
        StepState::Waiting | StepState::Skipped => ("·", Paint::Dim),
    };
    let undo = match step.compensation {
        UndoState::None | UndoState::NotNeeded => String::new(),
        UndoState::Ready if step.compensation_attempts == 0 => String::new(),
        other => format!("↶ {other}"),
    };
    let mut said = Vec::new();
    said.extend(step.pivot.then(|| "pivot".to_owned()));
    said.extend((step.doubted && step.state != StepState::Uncertain).then(|| "was in doubt".to_owned()));
    said.extend((step.run > 1).then(|| format!("run {}", step.run)));
    said.extend((step.attempts > 1).then(|| format!("{} attempts", step.attempts)));
    said.extend(
        (step.compensation_attempts > 1).then(|| format!("{} attempts to undo it", step.compensation_attempts)),
    );
    said.extend(step.code.as_ref().map(|code| match step.error.as_deref() {
        Some(error) if !error.is_empty() => format!("{code}: {error}"),
        _ => code.clone(),
    }));
    let text = format!(
        "{} {:width$}  {:10}  {undo:14}  {}",
        out.paint(paint, mark),
        cut(&step.name, 32),
        step.state.as_str().replace('_', " "),
        cut(&said.join(", "), 80)
    );
    text.trim_end().to_owned()
}

fn timeline(saga: &SagaView, log: &[LogLine], out: &Output) -> String {
    let since = |at: Timestamp| {
        let after = at.since(saga.row.created_at);
        match after.as_secs() {
            0..60 => format!("+{}.{:03}s", after.as_secs(), after.subsec_millis()),
            60..3600 => format!("+{}m{:02}s", after.as_secs() / 60, after.as_secs() % 60),
            seconds => format!("+{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        }
    };
    let row = |line: &LogLine| {
        vec![
            line.at.to_string(),
            since(line.at),
            line.what.replace('_', " "),
            line.step.clone().unwrap_or_default(),
            cut(&line.actor, 24),
            cut(&line.detail, DETAIL),
        ]
    };
    let heading = ["AT", "AFTER", "WHAT", "STEP", "BY", "DETAIL"];
    if let Some(first) = log.first().filter(|line| line.n > 1) {
        out.note(&format!("{} earlier lines of its log are left out.", first.n - 1));
    }
    out.broken_table(&heading, log.iter().map(row).collect())
}

/// The definition in a file; the error names it.
fn read(file: &Path) -> Result<Definition, Failure> {
    let name = file.display();
    let text = match file.to_str() {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        _ => std::fs::read_to_string(file),
    };
    let text = text.map_err(|e| Failure::not_found(format!("{name}: {e}")))?;
    let is_json = file.extension().is_some_and(|ending| ending == "json") || text.trim_start().starts_with('{');
    let definition = if is_json { from_json(&text) } else { from_toml(&text) };
    definition.map_err(|invalid| {
        let failure = Failure::from(Error::Invalid(invalid));
        Failure {
            message: format!("{name}: {}", failure.message.trim_end()),
            help: Some("see docs/sagas.md for what a definition holds".to_owned()),
            ..failure
        }
    })
}

async fn start(args: &SagaStart, store: &str, out: &Output) -> Result<(), Failure> {
    let definition = read(&args.file)?;
    let input = match &args.input_file {
        Some(file) => {
            let name = file.display();
            let text = std::fs::read_to_string(file).map_err(|e| Failure::not_found(format!("{name}: {e}")))?;
            json_of("input-file", &text)?
        }
        None => json_of("input", &args.input)?,
    };
    let start: Start = posthouse::saga::start(&definition, &args.key, &input)?
        .tenant(&args.tenant)
        .namespace(&args.namespace);
    let any = AnyStore::open(store).await?;
    let started = any.start(start).await?;
    let (id, new) = (started.id(), matches!(started, Started::New(_)));
    if out.json {
        return out.document(&json!({ "id": id, "new": new }));
    }
    if new {
        return out.data(&format!("{id}  started"));
    }
    let row = drive::load(&*any.store(), id).await?.row;
    out.data(&format!("{id}  was started before under this key: {}", standing(&row)))
}

fn lint(args: &SagaLint, out: &Output) -> Result<(), Failure> {
    let mut warnings = 0;
    for file in &args.files {
        let definition = read(file)?;
        let found = definition.lint();
        warnings += found.len();
        if out.json {
            out.document(&json!({
                "file": file, "name": definition.name(), "version": definition.version(),
                "hash": definition.hash().to_string(), "warnings": found,
            }))?;
            continue;
        }
        let (name, version) = (definition.name(), definition.version());
        let steps = definition.steps().len();
        let hash = definition.hash().to_string();
        out.data(&format!(
            "{}: {name}, version {version}, {steps} step{}, {}",
            file.display(),
            if steps == 1 { "" } else { "s" },
            &hash[..12]
        ))?;
        for warning in found {
            let mark = out.paint(Paint::Cyan, "warning:");
            out.data(&format!("  {mark} {}", visible(&warning.to_string())))?;
        }
    }
    match (args.deny_warnings, warnings) {
        (true, 1..) => Err(Failure {
            exit: Exit::Failed,
            ..Failure::not_confirmed(format!("{warnings} warning{}", if warnings == 1 { "" } else { "s" }))
        }),
        _ => Ok(()),
    }
}

async fn one(saga: &SagaRef, verb: &Verb, who: &Who, store: &str, out: &Output) -> Result<(), Failure> {
    let note = who.note()?;
    let any = AnyStore::open(store).await?;
    let id = find(&*any.admin(), saga).await?;
    let view = drive::operate(&*any.store(), id, verb, &who.actor, note).await?;
    told(&view, verb, out)
}

/// What a verb did, and how the saga stands then.
fn told(view: &SagaView, verb: &Verb, out: &Output) -> Result<(), Failure> {
    let row = &view.row;
    let goes_back = matches!(verb, Verb::Compensate { .. });
    if out.json {
        let mut answer = json!({
            "id": row.id, "done": verb.as_str(), "state": row.state, "reason": row.reason, "paused": row.paused,
        });
        if goes_back {
            (answer["stays_done"], answer["in_doubt"]) = (json!(view.stays_done), json!(view.in_doubt));
        }
        return out.document(&answer);
    }
    let word = verb.as_str().replace('_', " ");
    out.data(&format!("{}  {word}  {}", row.id, standing(row)))?;
    match goes_back {
        true => tell_left_done(view, out),
        false => Ok(()),
    }
}

fn leaves_something(view: &SagaView) -> bool {
    !view.stays_done.is_empty() || !view.in_doubt.is_empty()
}

/// The same steps of several sagas, for programs.
fn leaves(views: &[SagaView]) -> Value {
    let of = |view: &SagaView| {
        let left = json!({ "stays_done": view.stays_done, "in_doubt": view.in_doubt });
        (view.row.id.to_string(), left)
    };
    let views = views.iter().filter(|view| leaves_something(view));
    Value::Object(views.map(of).collect())
}

/// Prints the steps that compensating a saga leaves done, because nothing undoes them.
fn tell_left_done(view: &SagaView, out: &Output) -> Result<(), Failure> {
    for name in &view.stays_done {
        out.data(&format!("  {name}  stays done: it has no compensate_uri"))?;
    }
    for step in view.steps.iter().filter(|step| view.in_doubt.contains(&step.name)) {
        let (id, name) = (view.row.id, &step.name);
        let then = match (step.pivot, step.message) {
            (true, Some(_)) => {
                "that is found out first (by its answer, or verify_uri); the other steps are undone after it".to_owned()
            }
            (true, None) => format!(
                "nothing undoes it: the saga is held until you have found out and type: posthouse saga resolve {id} {name} --note TEXT"
            ),
            (false, _) => "nothing undoes it, so it may stay done".to_owned(),
        };
        out.data(&format!("  {name}  may have been done: {then}"))?;
    }
    Ok(())
}

async fn several(args: &Sagas, verb: &Verb, store: &str, out: &Output) -> Result<(), Failure> {
    let any = AnyStore::open(store).await?;
    let (admin, store) = (any.admin(), any.store());
    if !args.sagas.is_empty() {
        return by_name(args, verb, &*admin, &store, out).await;
    }
    let wanted = filter(&args.which);
    if wanted == SagaFilter::default() {
        return Err(Failure::not_confirmed("no saga is named")
            .help("name them by id or NAME/KEY, or by a filter: --state held"));
    }
    let ids = all(&*admin, wanted.clone()).await?;
    let n = ids.len();
    if args.dry_run {
        return preview(&ids, &wanted, verb, &args.who, &*store, out).await;
    }
    if !args.yes {
        return Err(
            Failure::not_confirmed(format!("this would {} {n} sagas; nothing was changed", verb.as_str()))
                .help("look at them with --dry-run, then add --yes and --note"),
        );
    }
    let note = args.who.note()?;
    let (mut done, mut left, mut unreadable) = (0, Vec::new(), Vec::new());
    let mut leaving: Vec<SagaView> = Vec::new();
    for id in ids {
        match drive::operate_if(&*store, id, &wanted, verb, &args.who.actor, note).await {
            Ok(true) => {
                done += 1;
                if matches!(verb, Verb::Compensate { .. }) {
                    leaving.push(drive::load(&*store, id).await?.view());
                }
            }
            Ok(false) | Err(Error::NoSaga(_)) => left.push((id, MOVED.to_owned())),
            Err(Error::SagaRefused { why, .. }) => left.push((id, why)),
            // One that cannot be read keeps no other from it.
            Err(error @ Error::Internal(_)) => unreadable.push(format!("{id}: {error}")),
            Err(error) => {
                out.note(&format!("{done} done: {}, before it failed", verb.as_str()));
                return Err(error.into());
            }
        }
    }
    if out.json {
        let why: serde_json::Map<_, _> = left.iter().map(|(id, why)| (id.to_string(), json!(why))).collect();
        let mut answer =
            json!({ "done": verb.as_str(), "count": done, "left": left.len(), "why": why, "unreadable": unreadable });
        if matches!(verb, Verb::Compensate { .. }) {
            answer["leaves"] = leaves(&leaving);
        }
        out.document(&answer)?;
    } else {
        out.data(&format!("{done} done: {}", verb.as_str().replace('_', " ")))?;
        for view in leaving.iter().filter(|view| leaves_something(view)) {
            out.data(&view.row.id.to_string())?;
            tell_left_done(view, out)?;
        }
    }
    if !left.is_empty() && !out.json {
        tell_left(&left, out);
    }
    if !unreadable.is_empty() {
        let n = unreadable.len();
        return Err(Failure::new(format!(
            "{n} could not be changed: {}",
            unreadable.join("; ")
        )));
    }
    Ok(())
}

/// Why one was left that a filter had found.
const MOVED: &str = "it has moved since it was found";
/// Of so many it is said why they are left.
const MOST_REASONS: usize = 20;

fn tell_left(left: &[(SagaId, String)], out: &Output) {
    out.note(&format!("{} left:", left.len()));
    left.iter()
        .take(MOST_REASONS)
        .for_each(|(id, why)| out.note(&format!("  {id}: {}", visible(why))));
    if left.len() > MOST_REASONS {
        out.note("  and others; --json tells of all.");
    }
}

/// What a verb would do, decided on the sagas as they stand, and not written.
async fn preview(
    ids: &[SagaId],
    wanted: &SagaFilter,
    verb: &Verb,
    who: &Who,
    store: &dyn Store,
    out: &Output,
) -> Result<(), Failure> {
    let (mut would, mut left) = (Vec::new(), Vec::new());
    for id in ids {
        match drive::load(store, *id).await {
            Ok(saga) if wanted.takes(&saga.row) => {
                match saga.ask(verb, &who.actor, who.note.as_deref().unwrap_or_default()) {
                    Ok(change) => would.push(saga.changed(change).view()),
                    Err(Error::SagaRefused { why, .. }) => left.push((*id, why)),
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(_) | Err(Error::NoSaga(_)) => left.push((*id, MOVED.to_owned())),
            Err(error @ Error::Internal(_)) => left.push((*id, error.to_string())),
            Err(error) => return Err(error.into()),
        }
    }
    let n = would.len();
    if out.json {
        let ids: Vec<_> = would.iter().map(|view| view.row.id).collect();
        let why: serde_json::Map<_, _> = left.iter().map(|(id, why)| (id.to_string(), json!(why))).collect();
        let mut answer = json!({ "count": n, "sagas": ids, "left": left.len(), "why": why });
        if matches!(verb, Verb::Compensate { .. }) {
            answer["leaves"] = leaves(&would);
        }
        return out.document(&answer);
    }
    out.data(&format!(
        "{n} would be asked to {}; nothing was changed.",
        verb.as_str().replace('_', " ")
    ))?;
    for view in &would {
        let row = &view.row;
        let (name, key) = (visible(&row.name), visible(&row.key));
        out.data(&format!("  {}  {name}/{key}  {}", row.id, standing(row)))?;
        if matches!(verb, Verb::Compensate { .. }) {
            tell_left_done(view, out)?;
        }
    }
    if !left.is_empty() {
        tell_left(&left, out);
    }
    Ok(())
}

async fn by_name(
    args: &Sagas,
    verb: &Verb,
    admin: &dyn Admin,
    store: &Arc<dyn Store>,
    out: &Output,
) -> Result<(), Failure> {
    let note = args.who.note()?;
    let mut ids = Vec::with_capacity(args.sagas.len());
    for saga in &args.sagas {
        ids.push(find(admin, saga).await?);
    }
    for (at, id) in ids.iter().enumerate() {
        let rest: Vec<_> = ids[at..].iter().map(|id| MessageId(id.0)).collect();
        out.in_hand(&rest);
        let view = drive::operate(&**store, *id, verb, &args.who.actor, note).await?;
        told(&view, verb, out)?;
    }
    out.in_hand(&[]);
    Ok(())
}

/// All that a filter takes.
async fn all(admin: &dyn Admin, mut filter: SagaFilter) -> Result<Vec<SagaId>, Failure> {
    let mut ids = Vec::new();
    filter.limit = 1000;
    // Ends: each page is below the one before it.
    loop {
        let page = admin.sagas(&filter).await?;
        ids.extend(page.sagas.iter().map(|row| row.id));
        match page.next {
            Some(next) => filter.below = Some(next),
            None => return Ok(ids),
        }
    }
}
