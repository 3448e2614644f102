//! An SVG plot with logarithmic axes. Its colours follow the reader's theme.

use std::fmt::{Display, Formatter, Result};

use crate::measure::Spread;

/// Curves of a cost.
pub(crate) struct Plot {
    pub(crate) title: String,
    /// The label of the horizontal axis.
    pub(crate) below: &'static str,
    pub(crate) series: Vec<Series>,
}

/// A curve: a median and its range for each number.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, Spread)>,
    /// Whether the cost does not depend on the number, so that the curve needs no marks.
    pub(crate) is_constant: bool,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 536.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 304.0;
/// The minimum distance between labels.
const LABEL_HEIGHT: f64 = 18.0;

const STYLE: &str = "\
text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #57606a; }
.title { font-size: 15px; font-weight: 600; fill: #1f2328; }
.name { font-weight: 600; }
.grid { stroke: #d0d7de; stroke-width: 1; }
.curve { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }
.range { stroke-width: 1.5; }
.s0 { stroke: #cf222e; } .d0 { fill: #cf222e; }
.s1 { stroke: #0969da; } .d1 { fill: #0969da; }
.s2 { stroke: #6e7781; stroke-dasharray: 2 6; } .d2 { fill: #6e7781; }
.s3 { stroke: #1a7f37; } .d3 { fill: #1a7f37; }
.s4 { stroke: #9a6700; stroke-dasharray: 2 6; } .d4 { fill: #9a6700; }
@media (prefers-color-scheme: dark) {
text { fill: #8d96a0; }
.title { fill: #e6edf3; }
.grid { stroke: #30363d; }
.s0 { stroke: #ff7b72; } .d0 { fill: #ff7b72; }
.s1 { stroke: #58a6ff; } .d1 { fill: #58a6ff; }
.s2 { stroke: #8d96a0; } .d2 { fill: #8d96a0; }
.s3 { stroke: #3fb950; } .d3 { fill: #3fb950; }
.s4 { stroke: #d29922; } .d4 { fill: #d29922; }
}
";

impl Display for Plot {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let most = points().map(|(x, _)| *x).fold(10.0, f64::max);
        let lowest = points().map(|(_, y)| y.min).fold(1.0, f64::min);
        // Without long curves, the range around 1 matters.
        let least = if lowest < 1.0 { 1.2 } else { 2.0 };
        let highest = points().map(|(_, y)| y.max).fold(least, f64::max);
        let lowest = (lowest * 20.0).floor() / 20.0;
        let x = |value: f64| LEFT + (RIGHT - LEFT) * value.ln() / most.ln();
        let y = |value: f64| {
            let part = (value / lowest).ln().max(0.0) / (highest / lowest).ln();
            BOTTOM - (BOTTOM - TOP) * part
        };

        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">"#
        )?;
        writeln!(f, "<title>{}</title>\n<style>\n{STYLE}</style>", self.title)?;
        writeln!(f, r#"<text class="title" x="{LEFT}" y="26">{}</text>"#, self.title)?;
        for tick in ticks(lowest, highest) {
            let at = y(tick);
            writeln!(
                f,
                r#"<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1}" y2="{at:.1}"/>"#
            )?;
            let (left, base) = (LEFT - 10.0, at + 4.5);
            writeln!(f, r#"<text x="{left}" y="{base:.1}" text-anchor="end">{tick}×</text>"#)?;
        }
        let mut tick = 1.0;
        while tick <= most {
            let (at, base) = (x(tick), BOTTOM + 22.0);
            writeln!(f, r#"<text x="{at:.1}" y="{base}" text-anchor="middle">{tick}</text>"#)?;
            tick *= 10.0;
        }
        let (middle, base) = ((LEFT + RIGHT) / 2.0, BOTTOM + 44.0);
        writeln!(f, r#"<text x="{middle}" y="{base}" text-anchor="middle">{}</text>"#, self.below)?;

        for (number, series) in self.series.iter().enumerate() {
            let path: Vec<String> = series
                .points
                .iter()
                .map(|(policies, spread)| format!("{:.1},{:.1}", x(*policies), y(spread.median)))
                .collect();
            let path = path.join(" ");
            writeln!(f, r#"<polyline class="curve s{number}" points="{path}"/>"#)?;
            if series.is_constant {
                continue;
            }
            for (policies, spread) in &series.points {
                let at = x(*policies);
                let (low, high, middle) = (y(spread.min), y(spread.max), y(spread.median));
                writeln!(
                    f,
                    r#"<line class="range s{number}" x1="{at:.1}" x2="{at:.1}" y1="{low:.1}" y2="{high:.1}"/>"#
                )?;
                writeln!(f, r#"<circle class="d{number}" cx="{at:.1}" cy="{middle:.1}" r="4"/>"#)?;
            }
        }
        for (number, (series, base)) in self.series.iter().zip(self.names(y)).enumerate() {
            let Some((_, last)) = series.points.last() else { continue };
            let left = RIGHT + 14.0;
            let (name, ratio) = (series.name, last.median);
            let digits = if ratio < 10.0 { 2 } else { 0 };
            writeln!(
                f,
                r#"<text class="name d{number}" x="{left}" y="{base:.1}">{name} {ratio:.digits$}×</text>"#
            )?;
        }
        writeln!(f, "</svg>")
    }
}

impl Plot {
    /// The base lines of the labels: each at the end of its curve, moved apart if they would overlap.
    fn names(&self, y: impl Fn(f64) -> f64) -> Vec<f64> {
        let end = |series: &Series| {
            series.points.last().map_or(BOTTOM, |(_, spread)| y(spread.median)) + 4.5
        };
        let ends: Vec<f64> = self.series.iter().map(end).collect();
        let mut order: Vec<usize> = (0..ends.len()).collect();
        order.sort_by(|a, b| ends[*b].total_cmp(&ends[*a]));
        let mut places = ends.clone();
        let mut lowest = BOTTOM + 4.5;
        for number in order {
            places[number] = ends[number].min(lowest);
            lowest = places[number] - LABEL_HEIGHT;
        }
        places
    }
}

/// 1, 2, 5, 10 and so on, without 2 and 5 if they would be too close.
fn ticks(lowest: f64, highest: f64) -> Vec<f64> {
    if lowest < 1.0 {
        let ticks = (1..30).map(|tenth| f64::from(tenth) / 10.0);
        return ticks.filter(|tick| (lowest..=highest).contains(tick)).collect();
    }
    let steps: &[f64] = match highest {
        ..3.0 => &[1.0, 1.2, 1.5, 2.0, 2.5],
        ..10.0 => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
        ..60.0 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let decades = [1.0, 10.0, 100.0, 1000.0].into_iter();
    decades
        .flat_map(|decade| steps.iter().map(move |step| step * decade))
        .filter(|tick| *tick <= highest)
        .collect()
}
