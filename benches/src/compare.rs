//! Reads what the peers and ours were measured at, and tells it as one table and as plots.
//!
//!     compare RUNS FOLDER
//!
//! RUNS has a line of JSON for each run, as `benches/peers/run` prints it, with the number of its round. Runs of one round stand beside
//! each other, so that ratios are made within a round: the machine may be twice as fast an hour later.

mod bars;
mod median;

use serde::Deserialize;
use std::{collections::BTreeMap, error::Error, fs, path::Path, process::ExitCode};

use bars::Row;
use median::median;

/// One run.
#[derive(Deserialize)]
struct Run {
    round: u32,
    peer: String,
    work: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    settings: String,
    per_second: Option<f64>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    offered_per_second: Option<f64>,
    /// Why it has no numbers.
    failed: Option<String>,
}

/// What is compared: a work, one of its figures, and whether more of it is better.
struct Figure {
    work: &'static str,
    title: &'static str,
    unit: &'static str,
    of: fn(&Run) -> Option<f64>,
    more_is_better: bool,
}

const FIGURES: [Figure; 5] = [
    Figure {
        work: "drain",
        title: "Drain of a backlog, nothing to do for each message",
        unit: "messages a second",
        of: |run| run.per_second,
        more_is_better: true,
    },
    Figure {
        work: "insert",
        title: "Insert, a thousand in a transaction",
        unit: "messages a second",
        of: |run| run.per_second,
        more_is_better: true,
    },
    Figure {
        work: "insert-one",
        title: "Insert, one in a transaction",
        unit: "messages a second",
        of: |run| run.per_second,
        more_is_better: true,
    },
    Figure {
        work: "latency",
        title: "From the commit to the handler, half of them",
        unit: "ms",
        of: |run| run.p50_ms,
        more_is_better: false,
    },
    Figure {
        work: "latency",
        title: "From the commit to the handler, 99 of 100",
        unit: "ms",
        of: |run| run.p99_ms,
        more_is_better: false,
    },
];

/// What one project was measured at, by round.
struct Measured<'a> {
    peer: &'a str,
    by_round: BTreeMap<u32, f64>,
}

impl Measured<'_> {
    fn values(&self) -> Vec<f64> {
        self.by_round.values().copied().collect()
    }

    fn median(&self) -> f64 {
        median(&self.values())
    }

    fn range(&self) -> (f64, f64) {
        let values = self.values();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        (least, values.iter().copied().fold(0.0, f64::max))
    }

    fn is_ours(&self) -> bool {
        self.peer.starts_with("posthouse")
    }

    /// Its ratios to another, of the rounds that both have.
    fn ratios(&self, to: &Self) -> Vec<f64> {
        let ratio = |(round, value): (&u32, &f64)| to.by_round.get(round).map(|other| value / other);
        self.by_round.iter().filter_map(ratio).collect()
    }
}

impl Figure {
    /// Everybody who has numbers, the best first.
    fn measured<'a>(&self, runs: &'a [Run]) -> Vec<Measured<'a>> {
        let mut by_peer: BTreeMap<&str, BTreeMap<u32, f64>> = BTreeMap::new();
        for run in runs.iter().filter(|run| run.work == self.work) {
            if let Some(value) = (self.of)(run) {
                by_peer.entry(&run.peer).or_default().insert(run.round, value);
            }
        }
        let mut all: Vec<_> = by_peer
            .into_iter()
            .map(|(peer, by_round)| Measured { peer, by_round })
            .collect();
        all.sort_by(|one, two| match self.more_is_better {
            true => two.median().total_cmp(&one.median()),
            false => one.median().total_cmp(&two.median()),
        });
        all
    }

    fn table(&self, all: &[Measured]) -> String {
        let mut text = format!("### {} ({})\n\n", self.title, self.unit);
        text += "| who | median | smallest to largest | of the best peer, by round | rounds |\n|---|---|---|---|---|\n";
        let best = all.iter().find(|one| !one.is_ours());
        for one in all {
            let (least, most) = one.range();
            let ratio = best.map(|best| one.ratios(best)).filter(|ratios| !ratios.is_empty());
            let ratio = ratio.map_or("-".to_owned(), |ratios| {
                let (low, high) = ratios
                    .iter()
                    .fold((f64::INFINITY, 0.0_f64), |(low, high), r| (low.min(*r), high.max(*r)));
                format!("{:.2} ({low:.2} to {high:.2})", median(&ratios))
            });
            text += &format!(
                "| {} | {} | {} to {} | {ratio} | {} |\n",
                one.peer,
                shown(one.median()),
                shown(least),
                shown(most),
                one.by_round.len()
            );
        }
        text
    }

    fn plot(&self, all: &[Measured], to: &Path) -> Result<(), Box<dyn Error>> {
        let row = |one: &Measured| Row {
            name: one.peer.to_owned(),
            median: one.median(),
            range: one.range(),
            stands_out: one.is_ours(),
        };
        bars::draw(self.title, self.unit, &all.iter().map(row).collect::<Vec<_>>(), to)
    }
}

/// Three digits are more than such a machine can tell.
fn shown(value: f64) -> String {
    if value >= 1000.0 {
        format!("{:.0}", (value / 100.0).round() * 100.0)
    } else {
        format!("{value:.2}")
    }
}

/// How each was set, and what could not be measured.
fn notes(runs: &[Run]) -> String {
    let (mut settings, mut failures) = (BTreeMap::new(), BTreeMap::new());
    for run in runs {
        if let Some(why) = &run.failed {
            *failures.entry((&*run.peer, &*run.work, &**why)).or_insert(0) += 1;
        } else {
            settings.insert((&*run.work, &*run.peer), (&*run.version, &*run.settings));
        }
    }
    let mut text = "### How each was set\n\n".to_owned();
    for ((work, peer), (version, words)) in settings {
        text += &format!("- {work}, {peer} {version}: {words}\n");
    }
    if !failures.is_empty() {
        text += "\n### Runs without a number\n\n";
        for ((peer, work, why), times) in failures {
            text += &format!("- {peer}, {work}, {times} times: {why}\n");
        }
    }
    let slow = runs
        .iter()
        .filter(|run| run.offered_per_second.is_some_and(|offered| offered < 475.0));
    let slow: Vec<_> = slow.map(|run| format!("{} (round {})", run.peer, run.round)).collect();
    if !slow.is_empty() {
        text += &format!(
            "\nWhere inserting one took so long that fewer than 475 a second were offered: {}.\n",
            slow.join(", ")
        );
    }
    text
}

fn read(file: &str) -> Result<Vec<Run>, Box<dyn Error>> {
    let lines = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let run = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| format!("{file}, line {}: {error}", at + 1))
    };
    Ok(lines.lines().enumerate().map(run).collect::<Result<_, _>>()?)
}

fn compare(runs: &str, folder: &str) -> Result<(), Box<dyn Error>> {
    let runs = read(runs)?;
    fs::create_dir_all(folder)?;
    for figure in &FIGURES {
        let all = figure.measured(&runs);
        if all.is_empty() {
            continue;
        }
        println!("{}", figure.table(&all));
        let name = match figure.unit {
            "ms" => figure.title.rsplit(", ").next().unwrap_or_default().replace(' ', "-"),
            _ => String::new(),
        };
        let name = format!("{}{}{name}.svg", figure.work, if name.is_empty() { "" } else { "-" });
        figure.plot(&all, &Path::new(folder).join(name))?;
    }
    println!("{}", notes(&runs));
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [runs, folder] = &arguments[..] else {
        eprintln!("usage: compare RUNS FOLDER");
        return ExitCode::from(2);
    };
    match compare(runs, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}
