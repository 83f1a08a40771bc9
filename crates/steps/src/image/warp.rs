//! Quadrilaterals of a picture as rectangles: a perspective warp.

use super::Extent;

/// A corner or a place, in pixels from the upper left.
pub(super) type Corner = [f64; 2];

/// Where places of a rectangle are in a picture: a projective map, `[x, y, w] = matrix * [u, v, 1]`.
#[derive(Debug)]
pub(super) struct Perspective {
    matrix: [f64; 8],
}

impl Perspective {
    /// The map that brings the corners of a rectangle `width` x `height` (upper left, upper right, lower right, lower
    /// left) to those of a quadrilateral; `None` where it has no area.
    pub(super) fn new(corners: &[Corner; 4], width: f64, height: f64) -> Option<Self> {
        // The unit square to the quadrilateral, in closed form (Heckbert 1989, section 2.2.3).
        let [p0, p1, p2, p3] = *corners;
        let sum = |axis: usize| p0[axis] - p1[axis] + p2[axis] - p3[axis];
        let (dx1, dy1) = (p1[0] - p2[0], p1[1] - p2[1]);
        let (dx2, dy2) = (p3[0] - p2[0], p3[1] - p2[1]);
        let area = dx1 * dy2 - dx2 * dy1;
        if area.abs() < 1e-9 || !area.is_finite() {
            return None;
        }
        let g = (sum(0) * dy2 - dx2 * sum(1)) / area;
        let h = (dx1 * sum(1) - sum(0) * dy1) / area;
        let (a, b) = (p1[0] - p0[0] + g * p1[0], p3[0] - p0[0] + h * p3[0]);
        let (d, e) = (p1[1] - p0[1] + g * p1[1], p3[1] - p0[1] + h * p3[1]);
        Some(Self { matrix: [a / width, b / height, p0[0], d / width, e / height, p0[1], g / width, h / height] })
    }

    fn place(&self, u: f64, v: f64) -> Corner {
        let [a, b, c, d, e, f, g, h] = self.matrix;
        let w = g * u + h * v + 1.0;
        [(a * u + b * v + c) / w, (d * u + e * v + f) / w]
    }

    /// Fills `out` with what is there in a picture, by cubic interpolation of 4 x 4 pixels; beyond its edges a picture
    /// goes on as it ends.
    pub(super) fn fill<F: Copy>(
        &self,
        (from, pixels): (&Extent, &[F]),
        (to, out): (&Extent, &mut [F]),
        (read, write): (impl Fn(F) -> f32, impl Fn(f32) -> F),
    ) {
        let channels = from.channels;
        for (position, pixel) in out.chunks_exact_mut(channels).enumerate() {
            let [x, y] = self.place((position % to.width) as f64, (position / to.width) as f64);
            let (columns, x_weights) = around(x, from.width);
            let (rows, y_weights) = around(y, from.height);
            for (channel, value) in pixel.iter_mut().enumerate() {
                let at = |row: usize, column: usize| read(pixels[(row * from.width + column) * channels + channel]);
                let line = |row: usize| -> f32 {
                    columns.iter().zip(x_weights).map(|(&column, weight)| at(row, column) * weight).sum()
                };
                *value = write(rows.iter().zip(y_weights).map(|(&row, weight)| line(row) * weight).sum());
            }
        }
    }
}

/// The four positions around a place on an axis of so many pixels, and what each counts: Keys's cubic with -0.75, as
/// OpenCV has it.
fn around(place: f64, length: usize) -> ([usize; 4], [f32; 4]) {
    const A: f32 = -0.75;
    // What is no number is at the edge.
    let place = if place.is_nan() { 0.0 } else { place.clamp(-1.0, length as f64) };
    let first = place.floor();
    let t = (place - first) as f32;
    let near = |t: f32| ((A + 2.0) * t - (A + 3.0)) * t * t + 1.0;
    let far = |t: f32| ((A * t - 5.0 * A) * t + 8.0 * A) * t - 4.0 * A;
    let position = |step: i64| (first as i64 + step).clamp(0, length as i64 - 1) as usize;
    ([position(-1), position(0), position(1), position(2)], [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_come_to_corners() {
        let corners = [[10.0, 5.0], [50.0, 9.0], [47.0, 30.0], [8.0, 26.0]];
        let map = Perspective::new(&corners, 40.0, 20.0).unwrap();
        let there = [map.place(0.0, 0.0), map.place(40.0, 0.0), map.place(40.0, 20.0), map.place(0.0, 20.0)];
        for (there, corner) in there.iter().zip(corners) {
            assert!((there[0] - corner[0]).abs() < 1e-9 && (there[1] - corner[1]).abs() < 1e-9, "{there:?} {corner:?}");
        }
        assert!(Perspective::new(&[[1.0, 1.0]; 4], 40.0, 20.0).is_none());
        assert!(Perspective::new(&[[f64::NAN, 1.0]; 4], 40.0, 20.0).is_none());
    }

    #[test]
    fn weights_are_one_together() {
        for place in [0.0, 0.25, 7.99, -3.0, 1e300, f64::NAN] {
            let (positions, weights) = around(place, 8);
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{place}");
            assert!(positions.iter().all(|&position| position < 8));
        }
    }
}
