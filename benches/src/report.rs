//! Collects samples and prints one table: bar, work, raw, ours, ratio, spread, whether the bar is met.

use crate::median::median;

/// One line of the table.
struct Line {
    bar: &'static str,
    work: String,
    raw: f64,
    ours: f64,
    unit: &'static str,
    ratio: f64,
    spread: f64,
    wanted: Bar,
}

impl Line {
    fn met(&self) -> &'static str {
        if self.wanted.met(self.ratio) { "yes" } else { "NO" }
    }
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

/// Largest over smallest: how much the same setting moved.
fn spread(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(0.0, f64::max) / samples.iter().copied().fold(f64::INFINITY, f64::min)
}

impl Report {
    pub fn conditions(&mut self, text: String) {
        self.conditions = text;
    }

    /// Compares medians of interleaved runs.
    pub fn compare(
        &mut self,
        bar: &'static str,
        work: &str,
        unit: &'static str,
        raw: &[f64],
        ours: &[f64],
        wanted: Bar,
    ) {
        let (r, o) = (median(raw), median(ours));
        let spread = spread(raw).max(spread(ours));
        self.push(Line {
            bar,
            work: work.to_owned(),
            raw: r,
            ours: o,
            unit,
            ratio: o / r,
            spread,
            wanted,
        });
    }

    /// One number against a bound, beside what it was made from.
    pub fn bound(
        &mut self,
        bar: &'static str,
        work: &str,
        unit: &'static str,
        from: (f64, f64),
        value: f64,
        wanted: Bar,
    ) {
        let (raw, ours) = from;
        self.push(Line {
            bar,
            work: work.to_owned(),
            raw,
            ours,
            unit,
            ratio: value,
            spread: 1.0,
            wanted,
        });
    }

    fn push(&mut self, line: Line) {
        eprintln!("  {} {}: {:.2} ({})", line.bar, line.work, line.ratio, line.met());
        self.lines.push(line);
    }

    pub fn print(&self) {
        println!("{}\n", self.conditions);
        println!(
            "{:<4} {:<52} {:>10} {:>10} {:<6} {:>7} {:>7} {:>9}  met",
            "bar", "work", "raw", "ours", "unit", "ratio", "spread", "wanted"
        );
        for l in &self.lines {
            println!(
                "{:<4} {:<52} {:>10.1} {:>10.1} {:<6} {:>7.2} {:>6.1}x {:>9}  {}",
                l.bar,
                l.work,
                l.raw,
                l.ours,
                l.unit,
                l.ratio,
                l.spread,
                l.wanted.words(),
                l.met()
            );
        }
    }
}
