//! Bars side by side, as plain SVG: one cluster for each category, one bar in it for each series.

use crate::show::svg::{
    self, Axis, BOTTOM, HEIGHT, LEFT, LEGEND_LINE, RIGHT, Scale, TOP, WIDTH, colour, escaped, push,
};

/// The part of a cluster's width that is left empty.
const GAP: f64 = 0.2;

/// A chart of bars.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) x_label: String,
    pub(crate) y: Axis,
    pub(crate) categories: Vec<String>,
    pub(crate) series: Vec<Series>,
}

/// The bars of one colour.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) label: String,
    /// One for each category, where there is one.
    pub(crate) values: Vec<Option<f64>>,
    /// Only an outline: what a paper says.
    pub(crate) outline: bool,
}

impl Bars {
    pub(crate) fn to_svg(&self) -> String {
        let labels: Vec<&str> = self.series.iter().map(|series| series.label.as_str()).collect();
        let rows = svg::legend_rows(&labels);
        let (top, height) = (TOP + rows as f64 * LEGEND_LINE, HEIGHT + rows as f64 * LEGEND_LINE);
        let values = self.series.iter().flat_map(|series| series.values.iter().flatten().copied());
        let from_zero = Axis { from: self.y.from.or(Some(0.0)), ..self.y.clone() };
        let y = Scale::new(&from_zero, values, height - BOTTOM, top);
        let mut svg = svg::begin(&self.title, height);
        svg::draw_y_axis(&mut svg, &y, &self.y.label);
        let cluster = (WIDTH - LEFT - RIGHT) / self.categories.len().max(1) as f64;
        let bar = cluster * (1.0 - GAP) / self.series.len().max(1) as f64;
        for (index, series) in self.series.iter().enumerate() {
            for (category, value) in series.values.iter().enumerate() {
                let Some(value) = value.filter(|value| value.is_finite()) else { continue };
                let left = LEFT + cluster * (category as f64 + GAP / 2.0) + bar * index as f64;
                let (up, down) = (y.place(value), y.start);
                let fill = if series.outline { "none" } else { colour(index) };
                push(
                    &mut svg,
                    format_args!(
                        "<rect x=\"{left:.1}\" y=\"{up:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\" stroke=\"{}\"/>",
                        (bar - 1.0).max(1.0),
                        (down - up).max(0.0),
                        colour(index)
                    ),
                );
            }
        }
        for (category, name) in self.categories.iter().enumerate() {
            let at = LEFT + cluster * (category as f64 + 0.5);
            push(
                &mut svg,
                format_args!(
                    "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    y.start + 18.0,
                    escaped(name)
                ),
            );
        }
        svg::draw_frame(&mut svg, LEFT, WIDTH - RIGHT, &y, &self.x_label);
        let marks: Vec<bool> = self.series.iter().map(|series| series.outline).collect();
        svg::draw_legend(&mut svg, &labels, &marks);
        svg.push_str("</svg>\n");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_bar() {
        let series = |label: &str, values: Vec<Option<f64>>| Series { label: label.into(), values, outline: false };
        let bars = Bars {
            title: "t".into(),
            x_label: "x".into(),
            y: Axis { label: "y".into(), logarithmic: false, from: None, to: None },
            categories: vec!["mixed".into(), "weak".into()],
            series: vec![series("a", vec![Some(1.0), Some(2.0)]), series("b", vec![None, Some(f64::NAN)])],
        };
        let svg = bars.to_svg();
        // The background, two bars, nothing for what isn't known.
        assert_eq!(svg.matches("<rect").count(), 3, "{svg}");
        assert!(svg.contains(">mixed<") && !svg.contains("NaN"));
    }
}
