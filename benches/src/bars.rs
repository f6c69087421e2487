//! Bars with their spread, as SVG.

use plotters::prelude::*;
use std::{error::Error, path::Path};

/// One bar: what it is called, how long it is, and from where to where single runs went.
pub struct Row {
    pub name: String,
    pub median: f64,
    pub range: (f64, f64),
    /// One of ours, among others.
    pub stands_out: bool,
}

/// A bar for each row, the first on top, with a line from the smallest to the largest run.
pub fn draw(title: &str, unit: &str, rows: &[Row], to: &Path) -> Result<(), Box<dyn Error>> {
    let most = rows.iter().map(|row| row.range.1).fold(0.0, f64::max) * 1.05;
    let root = SVGBackend::new(to, (760, 60 + 34 * u32::try_from(rows.len())?)).into_drawing_area();
    root.fill(&WHITE)?;
    // Both ends count.
    let places = (0..i32::try_from(rows.len())? - 1).into_segmented();
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 17))
        .margin(10)
        .x_label_area_size(32)
        .y_label_area_size(150)
        .build_cartesian_2d(0.0..most, places)?;
    let name = |place: &SegmentValue<i32>| match place {
        SegmentValue::CenterOf(at) => usize::try_from(*at)
            .ok()
            .and_then(|at| rows.get(rows.len() - 1 - at.min(rows.len() - 1)))
            .map_or(String::new(), |row| row.name.clone()),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_label_formatter(&name)
        .y_labels(rows.len() + 1)
        .x_label_formatter(&|value| {
            if most >= 1000.0 {
                format!("{value:.0}")
            } else {
                format!("{value:.1}")
            }
        })
        .max_light_lines(0)
        .x_desc(unit)
        .draw()?;
    for (at, row) in rows.iter().rev().enumerate() {
        let at = i32::try_from(at)?;
        let colour = if row.stands_out {
            RGBColor(38, 110, 72)
        } else {
            RGBColor(150, 158, 170)
        };
        let mut bar = Rectangle::new(
            [
                (0.0, SegmentValue::Exact(at)),
                (row.median, SegmentValue::Exact(at + 1)),
            ],
            colour.filled(),
        );
        bar.set_margin(6, 6, 0, 0);
        let (least, most) = row.range;
        let centre = SegmentValue::CenterOf(at);
        let line = PathElement::new(vec![(least, centre.clone()), (most, centre)], BLACK.stroke_width(2));
        chart.draw_series([bar])?;
        chart.draw_series([line])?;
    }
    root.present()?;
    Ok(())
}
