//! Collects samples and prints one table: bar, work, raw, ours, ratio, spread, whether the bar is met.

/// One line of the table.
struct Line {
    bar: &'static str,
    work: String,
    raw: f64,
    ours: f64,
    unit: &'static str,
    ratio: f64,
    spread: f64,
    wanted: String,
    met: bool,
}

/// The table.
#[derive(Default)]
pub struct Report {
    conditions: String,
    lines: Vec<Line>,
}

/// What the bar asks of the ratio.
#[derive(Clone, Copy)]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    fn met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(bound) => ratio >= bound,
            Self::AtMost(bound) => ratio <= bound,
        }
    }

    fn words(self) -> String {
        match self {
            Self::AtLeast(bound) => format!(">= {bound}"),
            Self::AtMost(bound) => format!("<= {bound}"),
        }
    }
}

pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Largest over smallest: how much the same setting moved.
fn spread(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(0.0, f64::max) / samples.iter().copied().fold(f64::INFINITY, f64::min)
}

impl Report {
    pub fn conditions(&mut self, text: String) {
        self.conditions = text;
    }

    /// Compares medians of interleaved runs.
    pub fn compare(&mut self, bar: &'static str, work: &str, unit: &'static str, raw: &[f64], ours: &[f64], wanted: Bar) {
        let (r, o) = (median(raw), median(ours));
        self.push(bar, work, unit, (r, o), o / r, spread(raw).max(spread(ours)), wanted);
    }

    /// One number against a bound.
    pub fn bound(&mut self, bar: &'static str, work: &str, unit: &'static str, raw: f64, ours: f64, value: f64, wanted: Bar) {
        self.push(bar, work, unit, (raw, ours), value, 1.0, wanted);
    }

    #[allow(clippy::too_many_arguments)]
    fn push(&mut self, bar: &'static str, work: &str, unit: &'static str, (raw, ours): (f64, f64), ratio: f64, spread: f64, wanted: Bar) {
        let line = Line { bar, work: work.to_owned(), raw, ours, unit, ratio, spread, wanted: wanted.words(), met: wanted.met(ratio) };
        eprintln!("  {} {}: {:.2} ({})", line.bar, line.work, line.ratio, if line.met { "met" } else { "not met" });
        self.lines.push(line);
    }

    pub fn print(&self) {
        println!("{}\n", self.conditions);
        println!("{:<4} {:<52} {:>10} {:>10} {:<6} {:>7} {:>7} {:>9}  met", "bar", "work", "raw", "ours", "unit", "ratio", "spread", "wanted");
        for l in &self.lines {
            let met = if l.met { "yes" } else { "NO" };
            println!("{:<4} {:<52} {:>10.1} {:>10.1} {:<6} {:>7.2} {:>6.1}x {:>9}  {met}", l.bar, l.work, l.raw, l.ours, l.unit, l.ratio, l.spread, l.wanted);
        }
    }
}
