//! Charts as SVG.

use std::borrow::Cow;
use std::fmt::Write;

use super::escaped;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 190.0;
/// Space for the labels of the axes.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 16.0;
const ABOVE: f64 = 10.0;
const BELOW: f64 = 24.0;
/// Colours that differ also for people with colour blindness (Okabe and Ito), and a pattern of dashes for each.
const STROKES: [(&str, &str); 8] = [
    ("#0072b2", ""),
    ("#d55e00", ""),
    ("#009e73", ""),
    ("#cc79a7", ""),
    ("#000000", "6 3"),
    ("#e69f00", "6 3"),
    ("#56b4e9", "6 3"),
    ("#7a6a00", "2 2"),
];

/// An axis: how to write a value, and its scale.
pub struct Axis {
    pub value: fn(f64) -> String,
    pub is_logarithmic: bool,
}

/// A line of a chart.
pub struct Line<'a> {
    pub name: Cow<'a, str>,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
    /// Whether a value holds until the next one.
    pub is_stepped: bool,
}

/// A chart.
pub struct Chart<'a> {
    pub title: &'static str,
    pub lines: Vec<Line<'a>>,
    pub x: Axis,
    pub y: Axis,
}

/// Where values are drawn.
struct Scale {
    from: f64,
    to: f64,
    is_logarithmic: bool,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>, axis: &Axis) -> Scale {
        let values = values.filter(|value| value.is_finite());
        let (mut from, mut to) = (f64::INFINITY, 0.0f64);
        for value in values {
            (from, to) = (from.min(value), to.max(value));
        }
        let is_logarithmic = axis.is_logarithmic && from > 0.0 && to > from;
        let from = if is_logarithmic { from } else { 0.0 };
        Scale { from, to: if to > from { to } else { from + 1.0 }, is_logarithmic }
    }

    /// A share between 0 and 1.
    fn place(&self, value: f64) -> f64 {
        if self.is_logarithmic {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        }
    }

    /// The value at a share.
    fn value(&self, share: f64) -> f64 {
        if self.is_logarithmic {
            self.from * (self.to / self.from).powf(share)
        } else {
            self.from + (self.to - self.from) * share
        }
    }
}

fn left(share: f64) -> f64 {
    LEFT + share * (WIDTH - LEFT - RIGHT)
}

fn top(share: f64) -> f64 {
    ABOVE + (1.0 - share) * (HEIGHT - ABOVE)
}

impl Chart<'_> {
    /// The chart with its title and a legend.
    pub fn figure(&self) -> String {
        let title = self.title;
        let mut text = format!("<figure>\n<h2>{title}</h2>\n");
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x = Scale::of(points().map(|point| point.0), &self.x);
        let y = Scale::of(points().map(|point| point.1), &self.y);
        let _ = writeln!(
            text,
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{title}\">",
            HEIGHT + BELOW
        );
        self.axes(&mut text, &x, &y);
        for (line, (colour, dashes)) in self.lines.iter().zip(STROKES.iter().cycle()) {
            let _ = writeln!(
                text,
                "<polyline class=\"line\" stroke=\"{colour}\" stroke-dasharray=\"{dashes}\" points=\"{}\">\
                 <title>{}</title></polyline>",
                line.places(&x, &y),
                escaped(&line.name)
            );
        }
        text.push_str("</svg>\n");
        if self.lines.len() > 1 {
            text.push_str(&self.legend());
        }
        text + "</figure>\n"
    }

    fn axes(&self, text: &mut String, x: &Scale, y: &Scale) {
        for share in [0.0, 0.5, 1.0] {
            let at = top(share);
            let class = if share == 0.0 { "axis" } else { "grid" };
            let _ = writeln!(
                text,
                "<line class=\"{class}\" x1=\"{LEFT}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\"/>\
                 <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                (self.y.value)(y.value(share))
            );
        }
        for (share, anchor) in
            [(0.0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1.0, "end")]
        {
            let _ = writeln!(
                text,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
                left(share),
                HEIGHT + 16.0,
                (self.x.value)(x.value(share))
            );
        }
    }

    fn legend(&self) -> String {
        let mut text = "<p>".to_owned();
        for (line, (colour, dashes)) in self.lines.iter().zip(STROKES.iter().cycle()) {
            let _ = write!(
                text,
                "<span style=\"white-space:nowrap;margin-right:1.2rem\"><svg style=\"width:26px;height:8px\" \
                 viewBox=\"0 0 26 8\"><line x1=\"0\" y1=\"4\" x2=\"26\" y2=\"4\" stroke=\"{colour}\" \
                 stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/></svg> {}</span> ",
                escaped(&line.name)
            );
        }
        text + "</p>\n"
    }
}

impl Line<'_> {
    fn places(&self, x: &Scale, y: &Scale) -> String {
        let mut text = String::new();
        let mut before = None;
        for (at, value) in &self.points {
            let (at, value) = (left(x.place(*at)), top(y.place(*value)));
            if let Some(before) = before.filter(|_| self.is_stepped) {
                let _ = write!(text, "{at:.1},{before:.1} ");
            }
            let _ = write!(text, "{at:.1},{value:.1} ");
            before = Some(value);
        }
        text.trim_end().to_owned()
    }
}

/// A number of things.
pub fn count(figure: f64) -> String {
    match figure {
        _ if figure >= 100.0 || figure == 0.0 => format!("{figure:.0}"),
        _ if figure >= 1.0 => format!("{figure:.1}"),
        _ => format!("{figure:.3}"),
    }
}

/// A size with its unit.
pub fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A duration in microseconds with its unit.
pub fn duration(us: f64) -> String {
    match us {
        _ if us == 0.0 => "0".to_owned(),
        _ if us < 1e3 => format!("{us:.0} us"),
        _ if us < 1e6 => format!("{:.1} ms", us / 1e3),
        _ if us < 120e6 => format!("{:.1} s", us / 1e6),
        _ if us < 7200e6 => format!("{:.1} min", us / 60e6),
        _ => format!("{:.1} h", us / 3600e6),
    }
}
