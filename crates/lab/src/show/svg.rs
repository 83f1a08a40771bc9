//! Line charts as plain SVG: axes with units, linear or logarithmic, a legend, nothing else.

use std::fmt::Write;

pub(crate) const WIDTH: f64 = 720.0;
pub(crate) const HEIGHT: f64 = 400.0;
pub(crate) const LEFT: f64 = 78.0;
pub(crate) const RIGHT: f64 = 20.0;
pub(crate) const TOP: f64 = 44.0;
pub(crate) const BOTTOM: f64 = 58.0;
pub(crate) const LEGEND_LINE: f64 = 18.0;
/// Colours that people who see few colours can tell apart (after Okabe and Ito), on white.
const COLOURS: [&str; 10] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444", "#8a6d00", "#7b3fa0", "#a00000"];

/// A chart.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) logarithmic: bool,
    /// Ends that are given instead of taken from the data.
    pub(crate) from: Option<f64>,
    pub(crate) to: Option<f64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// Only the points themselves, as what a paper says in numbers.
    pub(crate) dots: bool,
}

/// An axis whose ends and ticks are chosen.
pub(crate) struct Scale {
    logarithmic: bool,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
    /// Where the ends are drawn.
    pub(crate) start: f64,
    pub(crate) end: f64,
}

/// A chart of lines, each with its name and its points, from 0 up.
pub fn line_chart(
    title: &str,
    x_label: &str,
    y_label: &str,
    lines: impl IntoIterator<Item = (String, Vec<(f64, f64)>)>,
) -> String {
    let axis = |label: &str| Axis { label: label.to_owned(), logarithmic: false, from: Some(0.0), to: None };
    let lines = lines.into_iter().map(|(label, points)| Line { label, points, dots: false }).collect();
    Chart { title: title.to_owned(), x: axis(x_label), y: axis(y_label), lines }.to_svg()
}

impl Chart {
    pub(crate) fn to_svg(&self) -> String {
        let labels: Vec<&str> = self.lines.iter().map(|line| line.label.as_str()).collect();
        let legend = legend_rows(&labels);
        let top = TOP + legend as f64 * LEGEND_LINE;
        let height = HEIGHT + legend as f64 * LEGEND_LINE;
        let values =
            |pick: fn(&(f64, f64)) -> f64| self.lines.iter().flat_map(move |line| line.points.iter().map(pick));
        let x = Scale::new(&self.x, values(|point| point.0), LEFT, WIDTH - RIGHT);
        let y = Scale::new(&self.y, values(|point| point.1), height - BOTTOM, top);
        let mut svg = begin(&self.title, height);
        draw_x_axis(&mut svg, &x, y.start, y.end, "");
        draw_y_axis(&mut svg, &y, &self.y.label);
        draw_frame(&mut svg, x.start, x.end, &y, &self.x.label);
        for (index, line) in self.lines.iter().enumerate() {
            draw_line(&mut svg, line, colour(index), &x, &y);
        }
        let dots: Vec<bool> = self.lines.iter().map(|line| line.dots).collect();
        draw_legend(&mut svg, &labels, &dots);
        svg.push_str("</svg>\n");
        svg
    }
}

/// A white page with a heading.
pub(crate) fn begin(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{}\" y=\"26\" text-anchor=\"middle\" font-size=\"16\" font-weight=\"bold\">{}</text>\n",
        WIDTH / 2.0,
        escaped(title),
    )
}

/// Ticks with their numbers below a chart that reaches from `bottom` to `top`, and a label if it isn't empty.
pub(crate) fn draw_x_axis(svg: &mut String, x: &Scale, bottom: f64, top: f64, label: &str) {
    for &tick in &x.ticks {
        let at = x.place(tick);
        push(
            svg,
            format_args!("<line x1=\"{at:.1}\" y1=\"{bottom:.1}\" x2=\"{at:.1}\" y2=\"{top:.1}\" stroke=\"#e4e4e4\"/>"),
        );
        let (below, text) = (bottom + 18.0, number(tick));
        push(svg, format_args!("<text x=\"{at:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{text}</text>"));
    }
    if !label.is_empty() {
        let (middle, below) = ((x.start + x.end) / 2.0, bottom + 42.0);
        let label = escaped(label);
        push(svg, format_args!("<text x=\"{middle:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{label}</text>"));
    }
}

/// Ticks with their numbers left of a chart, and a label.
pub(crate) fn draw_y_axis(svg: &mut String, y: &Scale, label: &str) {
    let (left, right) = (LEFT, WIDTH - RIGHT);
    for &tick in &y.ticks {
        let at = y.place(tick);
        push(
            svg,
            format_args!("<line x1=\"{left:.1}\" y1=\"{at:.1}\" x2=\"{right:.1}\" y2=\"{at:.1}\" stroke=\"#e4e4e4\"/>"),
        );
        let (beside, middle, text) = (left - 8.0, at + 4.5, number(tick));
        push(svg, format_args!("<text x=\"{beside:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{text}</text>"));
    }
    let (middle, label) = ((y.start + y.end) / 2.0, escaped(label));
    push(
        svg,
        format_args!(
            "<text x=\"18\" y=\"{middle:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {middle:.1})\">{label}</text>"
        ),
    );
}

/// The two axes themselves, and what stands below.
pub(crate) fn draw_frame(svg: &mut String, left: f64, right: f64, y: &Scale, x_label: &str) {
    let (bottom, top) = (y.start, y.end);
    push(
        svg,
        format_args!("<path d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\" fill=\"none\" stroke=\"#333333\"/>"),
    );
    let (middle, below, label) = ((left + right) / 2.0, bottom + 42.0, escaped(x_label));
    push(svg, format_args!("<text x=\"{middle:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{label}</text>"));
}

/// Where each label of the legend goes: row and position.
fn legend_places(labels: &[&str]) -> Vec<(usize, f64)> {
    let (mut row, mut at) = (0, LEFT);
    let place = |label: &&str| {
        let width = 34.0 + 7.2 * label.chars().count() as f64 + 18.0;
        if at > LEFT && at + width > WIDTH - RIGHT {
            (row, at) = (row + 1, LEFT);
        }
        let here = (row, at);
        at += width;
        here
    };
    labels.iter().map(place).collect()
}

/// How many rows a legend takes; one line needs none.
pub(crate) fn legend_rows(labels: &[&str]) -> usize {
    if labels.len() < 2 { 0 } else { legend_places(labels).last().map_or(0, |(row, _)| row + 1) }
}

/// The legend; a circle for what a paper says, a stroke for what was measured.
pub(crate) fn draw_legend(svg: &mut String, labels: &[&str], circles: &[bool]) {
    if legend_rows(labels) == 0 {
        return;
    }
    for (index, (label, (row, at))) in labels.iter().zip(legend_places(labels)).enumerate() {
        let (y, colour) = (TOP + row as f64 * LEGEND_LINE, colour(index));
        let (middle, end) = (at + 12.0, at + 24.0);
        if circles.get(index) == Some(&true) {
            push(
                svg,
                format_args!(
                    "<circle cx=\"{middle:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>"
                ),
            );
        } else {
            push(
                svg,
                format_args!(
                    "<line x1=\"{at:.1}\" y1=\"{y:.1}\" x2=\"{end:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"3\"/>"
                ),
            );
        }
        let (right, below, label) = (at + 30.0, y + 4.5, escaped(label));
        push(svg, format_args!("<text x=\"{right:.1}\" y=\"{below:.1}\">{label}</text>"));
    }
}

fn draw_line(svg: &mut String, line: &Line, colour: &str, x: &Scale, y: &Scale) {
    // What lies beyond an end of the x axis that was given isn't drawn at it.
    let inside = |px: f64| x.shows(px) && (x.from..=x.to * 1.0001).contains(&px);
    let shown = line.points.iter().filter(|&&(px, py)| inside(px) && y.shows(py));
    let places: Vec<(f64, f64)> = shown.map(|&(px, py)| (x.place(px), y.place(py))).collect();
    if !line.dots {
        let points: Vec<String> = places.iter().map(|(px, py)| format!("{px:.1},{py:.1}")).collect();
        push(
            svg,
            format_args!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                points.join(" ")
            ),
        );
    }
    // Few points are measurements that should be seen; many are a curve.
    if line.dots || places.len() <= 30 {
        let (radius, fill) = if line.dots { (5.0, "none") } else { (3.0, colour) };
        for (px, py) in places {
            push(
                svg,
                format_args!(
                    "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"2\"/>"
                ),
            );
        }
    }
}

impl Scale {
    pub(crate) fn new(axis: &Axis, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let usable = values.filter(|value| value.is_finite() && (!axis.logarithmic || *value > 0.0));
        let (low, high) =
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low > high { (1.0, 10.0) } else { (low, high) };
        let (low, high) = (axis.from.unwrap_or(low), axis.to.unwrap_or(high));
        let (from, to, ticks) = if axis.logarithmic { logarithmic(low, high) } else { linear(low, high, axis) };
        Self { logarithmic: axis.logarithmic, from, to, ticks, start, end }
    }

    fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.logarithmic || value > 0.0)
    }

    pub(crate) fn place(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.start + part.clamp(0.0, 1.0) * (self.end - self.start)
    }
}

/// Ends and ticks at round numbers.
fn linear(low: f64, high: f64, axis: &Axis) -> (f64, f64, Vec<f64>) {
    // An axis that begins near zero begins at zero: nothing looks larger than it is.
    let low = if axis.from.is_none() && low > 0.0 && low < 0.6 * high { 0.0 } else { low };
    let high = if high > low { high } else { low + low.abs().max(1.0) };
    let rough = (high - low) / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|&step| step >= rough);
    let step = step.unwrap_or(10.0 * power);
    let from = axis.from.unwrap_or((low / step + 1e-9).floor() * step);
    let to = axis.to.unwrap_or((high / step - 1e-9).ceil() * step);
    let first = (from / step - 1e-9).ceil() as i64;
    let last = (to / step + 1e-9).floor() as i64;
    (from, to, (first..=last).map(|index| index as f64 * step).collect())
}

/// Ends at the data, ticks at 1, 2 and 5 of each decade, or at the decades where there are many.
fn logarithmic(low: f64, high: f64) -> (f64, f64, Vec<f64>) {
    let low = low.max(1e-12);
    let high = if high > low * 1.01 { high } else { low * 10.0 };
    let decades = (high / low).log10();
    let factors: &[f64] = if decades > 3.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let mut ticks = Vec::new();
    for power in low.log10().floor() as i32..=high.log10().ceil() as i32 {
        ticks.extend(factors.iter().map(|factor| factor * 10f64.powi(power)));
    }
    let from = ticks.iter().copied().filter(|&tick| tick <= low * 1.0001).fold(low, f64::max).min(low);
    let to = ticks.iter().copied().filter(|&tick| tick >= high * 0.9999).fold(f64::INFINITY, f64::min);
    let from = ticks.iter().copied().filter(|&tick| tick <= from * 1.0001).fold(from * 0.5, f64::max);
    ticks.retain(|&tick| tick >= from * 0.9999 && tick <= to * 1.0001);
    (from, to, ticks)
}

pub(crate) fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

pub(crate) fn push(svg: &mut String, element: std::fmt::Arguments<'_>) {
    // Writing to a string can't fail.
    let _ = writeln!(svg, "{element}");
}

/// A tick's number: as short as it can be read.
fn number(value: f64) -> String {
    let rounded = if value.abs() >= 100.0 { value.round() } else { (value * 1e6).round() / 1e6 };
    let digits = format!("{rounded}");
    match digits.strip_suffix("000000") {
        Some(millions) if !millions.is_empty() => format!("{millions}M"),
        _ => digits,
    }
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(logarithmic: bool) -> Axis {
        Axis { label: "x".into(), logarithmic, from: None, to: None }
    }

    #[test]
    fn ticks_are_round_and_hold_the_data() {
        assert_eq!(linear(0.0, 947.0, &axis(false)), (0.0, 1000.0, vec![0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]));
        assert_eq!(linear(-15.0, 60.0, &axis(false)).2, [-20.0, 0.0, 20.0, 40.0, 60.0]);
        assert_eq!(logarithmic(10.0, 500.0), (10.0, 500.0, vec![10.0, 20.0, 50.0, 100.0, 200.0, 500.0]));
        assert_eq!(logarithmic(3.0, 40.0), (2.0, 50.0, vec![2.0, 5.0, 10.0, 20.0, 50.0]));
        assert_eq!(number(0.30000000000000004), "0.3");
    }

    #[test]
    fn odd_data_still_makes_a_chart() {
        for points in [vec![], vec![(1.0, 1.0)], vec![(0.0, f64::NAN), (1.0, 0.0)], vec![(5.0, 5.0), (5.0, 5.0)]] {
            for logarithmic in [false, true] {
                let line = Line { label: "<a & b>".into(), points: points.clone(), dots: false };
                let chart = Chart {
                    title: "t".into(),
                    x: axis(logarithmic),
                    y: axis(logarithmic),
                    lines: vec![line.clone(), line],
                };
                let svg = chart.to_svg();
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                assert!(svg.contains("&lt;a &amp; b&gt;") && svg.ends_with("</svg>\n"));
            }
        }
    }
}
