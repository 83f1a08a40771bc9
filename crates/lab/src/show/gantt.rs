//! Batches on devices over time, as plain SVG: a line for each device, a block for each batch with its rows in it.

use crate::show::svg::{self, Axis, LEFT, RIGHT, Scale, WIDTH, colour, escaped, push};
use serde_json::Value;

const LINE: f64 = 34.0;
const BLOCK: f64 = 26.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 58.0;
const HEADING: f64 = 26.0;

/// Several runs below each other, each with its devices.
pub(crate) struct Gantt<'a> {
    pub(crate) title: String,
    pub(crate) x_label: String,
    /// Milliseconds up to which batches are shown.
    pub(crate) until_ms: f64,
    /// A heading and a trace (`batches`, `bad_sent_ms`) for each run.
    pub(crate) runs: Vec<(String, &'a Value)>,
}

impl Gantt<'_> {
    pub(crate) fn to_svg(&self) -> String {
        let devices = |trace: &Value| batches(trace).map(|batch| batch.device + 1).max().unwrap_or(1);
        let lines: u64 = self.runs.iter().map(|(_, trace)| devices(trace) + 1).sum();
        let height = TOP + HEADING * self.runs.len() as f64 + lines as f64 * LINE + BOTTOM;
        let axis = Axis { label: self.x_label.clone(), logarithmic: false, from: Some(0.0), to: Some(self.until_ms) };
        let x = Scale::new(&axis, std::iter::empty(), LEFT, WIDTH - RIGHT);
        let mut svg = svg::begin(&self.title, height);
        svg::draw_x_axis(&mut svg, &x, height - BOTTOM, TOP, &self.x_label);
        let mut top = TOP;
        for (heading, trace) in &self.runs {
            let text = escaped(heading);
            push(
                &mut svg,
                format_args!("<text x=\"{LEFT}\" y=\"{:.1}\" font-weight=\"bold\">{text}</text>", top + 18.0),
            );
            top += HEADING;
            let count = devices(trace);
            for device in 0..count {
                let middle = top + LINE * (device as f64 + 0.5) + 4.5;
                let at = LEFT - 8.0;
                push(&mut svg, format_args!("<text x=\"{at}\" y=\"{middle:.1}\" text-anchor=\"end\">d{device}</text>"));
            }
            for batch in batches(trace).filter(|batch| batch.started_ms < self.until_ms) {
                draw_batch(&mut svg, &batch, &x, top);
            }
            draw_bad(&mut svg, trace, &x, top + LINE * (count as f64 + 0.5), self.until_ms);
            top += LINE * (count + 1) as f64;
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn draw_batch(svg: &mut String, batch: &BatchBar, x: &Scale, top: f64) {
    let (left, right) = (x.place(batch.started_ms), x.place(batch.ended_ms));
    let up = top + LINE * batch.device as f64 + (LINE - BLOCK) / 2.0;
    let (fill, rows) = (colour(batch.model as usize), batch.rows);
    push(
        svg,
        format_args!(
            "<rect x=\"{left:.1}\" y=\"{up:.1}\" width=\"{:.1}\" height=\"{BLOCK}\" fill=\"{fill}\" stroke=\"#ffffff\"/>",
            (right - left).max(1.0)
        ),
    );
    push(
        svg,
        format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#ffffff\">{rows}</text>",
            (left + right) / 2.0,
            up + BLOCK / 2.0 + 4.5
        ),
    );
}

/// A hollow circle for each request that went bad, where it was sent.
fn draw_bad(svg: &mut String, trace: &Value, x: &Scale, y: f64, until_ms: f64) {
    let at = LEFT - 8.0;
    push(svg, format_args!("<text x=\"{at}\" y=\"{:.1}\" text-anchor=\"end\">bad</text>", y + 4.5));
    let sent = trace.get("bad_sent_ms").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_f64);
    for sent_ms in sent.filter(|sent_ms| *sent_ms < until_ms) {
        let cx = x.place(sent_ms);
        push(
            svg,
            format_args!(
                "<circle cx=\"{cx:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"none\" stroke=\"#d00000\" stroke-width=\"2\"/>"
            ),
        );
    }
}

struct BatchBar {
    device: u64,
    model: u64,
    rows: u64,
    started_ms: f64,
    ended_ms: f64,
}

fn batches(trace: &Value) -> impl Iterator<Item = BatchBar> {
    let batch = |batch: &Value| {
        Some(BatchBar {
            device: batch.get("device")?.as_u64()?,
            model: batch.get("model")?.as_u64()?,
            rows: batch.get("rows")?.as_u64()?,
            started_ms: batch.get("started_ms")?.as_f64()?,
            ended_ms: batch.get("ended_ms")?.as_f64()?,
        })
    };
    trace.get("batches").and_then(Value::as_array).into_iter().flatten().filter_map(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_batch_is_a_block_on_its_device() {
        let trace = json!({
            "batches": [
                {"device": 0, "model": 0, "rows": 4, "started_ms": 0.0, "ended_ms": 9.0},
                {"device": 2, "model": 0, "rows": 17, "started_ms": 3.0, "ended_ms": 12.0},
                {"device": 1, "model": 0, "rows": 5, "started_ms": 99.0, "ended_ms": 120.0},
            ],
            "bad_sent_ms": [2.5],
        });
        let gantt =
            Gantt { title: "t".into(), x_label: "ms".into(), until_ms: 50.0, runs: vec![("deferred".into(), &trace)] };
        let svg = gantt.to_svg();
        assert_eq!(svg.matches("<rect").count(), 3, "the background and what is before the end: {svg}");
        assert!(svg.contains(">17<") && svg.contains(">d2<") && svg.contains("<circle"));
    }
}
