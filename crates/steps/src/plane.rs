//! Shapes in a plane of pixels: convex hulls, smallest rectangles, outlines made larger.

use std::f64::consts::{PI, TAU};

/// A pixel: x and y. Maps have sides of 65,535 pixels at most, so that no product overflows.
pub(crate) type Pixel = [i64; 2];

/// A place between pixels.
pub(crate) type Spot = [f64; 2];

/// The corners of the smallest convex outline around pixels, clockwise as a picture is seen; of pixels by rising y,
/// then x. A pixel or a line has no more than two.
pub(crate) fn hull(pixels: &[Pixel]) -> Vec<Pixel> {
    let mut outline: Vec<Pixel> = Vec::new();
    // Down along the right side, then up along the left one.
    half(&mut outline, 1, pixels.iter().copied());
    let right = outline.len();
    half(&mut outline, right.max(1), pixels.iter().rev().copied().skip(1));
    if outline.len() > 1 {
        outline.pop();
    }
    outline
}

/// Adds pixels, and takes back those that are not corners then; the first `kept` stay.
fn half(outline: &mut Vec<Pixel>, kept: usize, pixels: impl Iterator<Item = Pixel>) {
    for pixel in pixels {
        while outline.len() > kept && turn(outline[outline.len() - 2], outline[outline.len() - 1], pixel) <= 0 {
            outline.pop();
        }
        if outline.last() != Some(&pixel) {
            outline.push(pixel);
        }
    }
}

/// Whether it goes to the right at the second of three pixels (above 0), straight on (0) or to the left.
fn turn(one: Pixel, two: Pixel, three: Pixel) -> i64 {
    (two[0] - one[0]) * (three[1] - two[1]) - (two[1] - one[1]) * (three[0] - two[0])
}

/// A rectangle in any direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tilted {
    /// One after the other around it.
    pub(crate) corners: [Spot; 4],
    pub(crate) sides: [f64; 2],
}

impl Tilted {
    /// The smallest one around a hull: one of its sides lies on one of the hull's (Freeman and Shapira, 1975). `None`
    /// around nothing.
    pub(crate) fn around(hull: &[Pixel]) -> Option<Self> {
        let spots: Vec<Spot> = hull.iter().map(|pixel| pixel.map(|along| along as f64)).collect();
        let first = *spots.first()?;
        let mut best = Self { corners: [first; 4], sides: [0.0; 2] };
        let mut least = f64::INFINITY;
        for (at, from) in spots.iter().enumerate().filter(|_| spots.len() > 1) {
            let to = spots[(at + 1) % spots.len()];
            let length = (to[0] - from[0]).hypot(to[1] - from[1]);
            let (x, y) = ((to[0] - from[0]) / length, (to[1] - from[1]) / length);
            // Along the side, and across it.
            let (mut low, mut high) = ([f64::INFINITY; 2], [f64::NEG_INFINITY; 2]);
            for spot in &spots {
                let along = [spot[0] * x + spot[1] * y, spot[1] * x - spot[0] * y];
                for axis in 0..2 {
                    low[axis] = low[axis].min(along[axis]);
                    high[axis] = high[axis].max(along[axis]);
                }
            }
            let sides = [high[0] - low[0], high[1] - low[1]];
            if sides[0] * sides[1] < least {
                least = sides[0] * sides[1];
                let spot = |along: f64, across: f64| [along * x - across * y, along * y + across * x];
                let corners =
                    [spot(low[0], low[1]), spot(high[0], low[1]), spot(high[0], high[1]), spot(low[0], high[1])];
                best = Self { corners, sides };
            }
        }
        Some(best)
    }

    pub(crate) fn shorter_side(&self) -> f64 {
        self.sides[0].min(self.sides[1])
    }

    /// Upper left, upper right, lower right, lower left: of the two corners on the left the upper one comes first, and
    /// of the two on the right.
    pub(crate) fn ordered_corners(&self) -> [Spot; 4] {
        from_upper_left(self.corners)
    }
}

/// Four corners as [`Tilted::ordered_corners`] has them.
pub(crate) fn from_upper_left(mut corners: [Spot; 4]) -> [Spot; 4] {
    corners.sort_by(|one, other| one[0].total_cmp(&other[0]));
    let [mut one, mut two, mut three, mut four] = corners;
    if one[1] > two[1] {
        (one, two) = (two, one);
    }
    if three[1] > four[1] {
        (three, four) = (four, three);
    }
    [one, three, four, two]
}

/// How far from a circle its corners may be, in pixels.
const ROUNDNESS: f64 = 0.25;

/// The pixels of an outline that is so far away from a hull on all sides, round at its corners; by rising y, then x.
pub(crate) fn grown(hull: &[Pixel], distance: f64) -> Vec<Pixel> {
    if hull.len() < 3 || distance <= 0.0 {
        let mut same = hull.to_vec();
        same.sort_unstable_by_key(|&[x, y]| (y, x));
        return same;
    }
    // As many corners of a whole circle as it needs to be round.
    let coarse = PI / (1.0 - ROUNDNESS.min(distance * ROUNDNESS) / distance).acos();
    let corners = coarse.min(distance * PI);
    let outward = |at: usize| {
        let (from, to) = (hull[at], hull[(at + 1) % hull.len()]);
        let (x, y) = ((to[0] - from[0]) as f64, (to[1] - from[1]) as f64);
        let length = x.hypot(y);
        [y / length, -x / length]
    };
    let mut outline = Vec::new();
    for at in 0..hull.len() {
        let (before, behind) = (outward((at + hull.len() - 1) % hull.len()), outward(at));
        let angle =
            (before[0] * behind[1] - before[1] * behind[0]).atan2(before[0] * behind[0] + before[1] * behind[1]);
        let steps = (corners / TAU * angle.abs()).round().max(1.0) as u32;
        let (sine, cosine) = (TAU / corners).sin_cos();
        let mut direction = before;
        let mut push = |direction: Spot| {
            let along = |axis: usize| (hull[at][axis] as f64 + direction[axis] * distance).round() as i64;
            outline.push([along(0), along(1)]);
        };
        for _ in 0..steps {
            push(direction);
            let [x, y] = direction;
            direction = [x * cosine - y * sine, x * sine + y * cosine];
        }
        push(behind);
    }
    outline.sort_unstable_by_key(|&[x, y]| (y, x));
    outline
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hulls_go_clockwise_and_have_corners_only() {
        let square: Vec<Pixel> = (0..5).flat_map(|y| (0..5).map(move |x| [x, y])).collect();
        assert_eq!(hull(&square), [[0, 0], [4, 0], [4, 4], [0, 4]]);
        assert_eq!(hull(&[[3, 3]]), [[3, 3]]);
        assert_eq!(hull(&[[1, 1], [2, 2], [3, 3]]), [[1, 1], [3, 3]]);
        assert!(hull(&[]).is_empty());
    }

    #[test]
    fn rectangles_lie_on_a_side() {
        let diamond = hull(&[[5, 0], [0, 5], [10, 5], [5, 10]]);
        let found = Tilted::around(&diamond).unwrap();
        assert!((found.shorter_side() - 50f64.sqrt()).abs() < 1e-9, "{found:?}");
        let flat = Tilted::around(&hull(&[[2, 2], [9, 2]])).unwrap();
        assert_eq!((flat.sides, flat.shorter_side()), ([7.0, 0.0], 0.0));
        assert_eq!(Tilted::around(&[]), None);
    }

    #[test]
    fn an_outline_grows_by_the_distance() {
        let larger = hull(&grown(&hull(&[[0, 0], [40, 0], [0, 10], [40, 10]]), 6.4));
        let found = Tilted::around(&larger).unwrap();
        assert_eq!(found.ordered_corners(), [[-6.0, -6.0], [46.0, -6.0], [46.0, 16.0], [-6.0, 16.0]]);
        assert_eq!(grown(&[[1, 1], [3, 1]], 5.0), [[1, 1], [3, 1]]);
    }

    proptest! {
        /// Every pixel is within the hull and within the rectangle, whichever pixels there are.
        #[test]
        fn all_pixels_are_within(mut pixels in proptest::collection::vec([0i64..50, 0i64..50], 1..40), distance in 0.0f64..9.0) {
            pixels.sort_unstable_by_key(|&[x, y]| (y, x));
            let outline = hull(&pixels);
            if outline.len() > 2 {
                for (at, &corner) in outline.iter().enumerate() {
                    let next = outline[(at + 1) % outline.len()];
                    prop_assert!(pixels.iter().all(|&pixel| turn(corner, next, pixel) >= 0));
                }
            }
            let rectangle = Tilted::around(&outline).unwrap();
            let larger = grown(&outline, distance);
            prop_assert!(larger.is_sorted_by_key(|&[x, y]| (y, x)));
            let wide = Tilted::around(&hull(&larger)).unwrap();
            prop_assert!(wide.sides[0] * wide.sides[1] + 1e-6 >= rectangle.sides[0] * rectangle.sides[1]);
            prop_assert!(wide.corners.iter().flatten().all(|along| along.is_finite()));
        }
    }
}
