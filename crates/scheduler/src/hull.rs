//! A priority queue whose priorities are lines: each entry is a point `(x, y)`, worth `slope * x + y`, and the slope is
//! only known when the best entry is asked for.
//!
//! The best entry for any slope is a corner of the upper convex hull. The hull of a set that changes is kept the way
//! Overmars and van Leeuwen did (Maintenance of configurations in the plane, 1981): the points are the leaves of a
//! balanced tree in the order of x, and every inner node knows its *bridge*, the one edge that joins the hulls of its
//! two halves.
//!
//! ```text
//!            p ─────────── q          the bridge of this node
//!          ╱   ╲         ╱   ╲
//!         left half │ right half
//! ```
//!
//! Their concatenable queues, which make the hull of each node readable as a list, are left out: all that is asked here
//! can be answered by going down the tree from bridge to bridge. Asking for the best takes O(log n). A new point
//! changes the bridge of a half that it lies in only if it lies above it, and is then one end of the new bridge; the
//! other end is found in O(log n), for each of O(log n) nodes. A point that is taken away changes only the bridges that
//! end in it.
//!
//! Coordinates are floating-point numbers: of two points whose worth differs by less than the rounding, either may be
//! given.

use std::cmp::Ordering;

/// An entry: a point with the number by which its owner knows it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// What the slope is multiplied with.
    pub x: f64,
    /// What doesn't depend on the slope.
    pub y: f64,
    /// Unique among the points of a hull.
    pub id: u64,
}

impl Point {
    /// What the point is worth at a slope.
    pub fn worth(self, slope: f64) -> f64 {
        slope * self.x + self.y
    }

    fn order(&self, other: &Self) -> Ordering {
        self.x.total_cmp(&other.x).then(self.y.total_cmp(&other.y)).then(self.id.cmp(&other.id))
    }
}

/// Above 0 when `c` lies above the line from `a` to `b`, for `a` left of `b`.
fn above(a: Point, b: Point, c: Point) -> f64 {
    (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x)
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The edge that joins the hulls of the halves; for a leaf twice its point.
    bridge: (Point, Point),
    /// Not before any point of the left half, and before every point of the right one.
    split: Point,
    left: u32,
    right: u32,
    height: u32,
}

impl Node {
    fn leaf(point: Point) -> Self {
        Self { bridge: (point, point), split: point, left: NONE, right: NONE, height: 0 }
    }

    fn is_leaf(&self) -> bool {
        self.left == NONE
    }
}

/// The entries of a queue whose priorities are `slope * x + y`.
#[derive(Clone, Debug)]
pub struct Hull {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    len: usize,
}

impl Default for Hull {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NONE, len: 0 }
    }
}

impl Hull {
    /// How many points there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.free.clear();
        (self.root, self.len) = (NONE, 0);
    }

    /// The point that is worth the most at a slope. O(log n).
    pub fn best(&self, slope: f64) -> Option<Point> {
        let mut at = self.root;
        if at == NONE {
            return None;
        }
        loop {
            let node = &self.nodes[at as usize];
            let (p, q) = node.bridge;
            if node.is_leaf() {
                return Some(p);
            }
            // Of points above each other those on the right are higher.
            at = if p.x == q.x || q.worth(slope) > p.worth(slope) { node.right } else { node.left };
        }
    }

    /// Puts a point in. O(log² n).
    pub fn insert(&mut self, point: Point) {
        assert!(point.x.is_finite() && point.y.is_finite(), "a point of a hull has finite coordinates");
        self.len += 1;
        self.root = match self.root {
            NONE => self.add(Node::leaf(point)),
            root => self.insert_below(root, point),
        };
    }

    /// Takes a point out, which must be given exactly as it was put in; whether it was there. O(log² n).
    pub fn remove(&mut self, point: Point) -> bool {
        if self.root == NONE {
            return false;
        }
        match self.remove_below(self.root, point) {
            Removed::Nothing => return false,
            Removed::All => self.root = NONE,
            Removed::Left(root) => self.root = root,
        }
        self.len -= 1;
        true
    }

    fn add(&mut self, node: Node) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        }
    }

    /// The root of a subtree after a point was put in.
    fn insert_below(&mut self, at: u32, point: Point) -> u32 {
        let node = self.nodes[at as usize];
        if node.is_leaf() {
            let there = node.split;
            let new = self.add(Node::leaf(point));
            let first = point.order(&there) == Ordering::Less;
            let (left, right) = if first { (new, at) } else { (at, new) };
            let bridge = if first { (point, there) } else { (there, point) };
            return self.add(Node { bridge, split: bridge.0, left, right, height: 1 });
        }
        let goes_left = point.order(&node.split) != Ordering::Greater;
        let child = self.insert_below(if goes_left { node.left } else { node.right }, point);
        let (p, q) = node.bridge;
        let overtops = p.x == q.x || above(p, q, point) > 0.0;
        let here = &mut self.nodes[at as usize];
        if goes_left {
            here.left = child;
        } else {
            here.right = child;
        }
        if overtops {
            let bridge = match (p.x == q.x, goes_left) {
                // The halves touch in x: rare enough for the general way.
                (true, _) => self.bridge_of(at),
                (false, true) => (point, self.touch_right(&self.nodes[node.right as usize], point)),
                (false, false) => (self.touch_left(&self.nodes[node.left as usize], point), point),
            };
            self.nodes[at as usize].bridge = bridge;
        }
        self.balance(at)
    }

    fn remove_below(&mut self, at: u32, point: Point) -> Removed {
        let node = self.nodes[at as usize];
        if node.is_leaf() {
            if node.split.order(&point) != Ordering::Equal {
                return Removed::Nothing;
            }
            self.free.push(at);
            return Removed::All;
        }
        let goes_left = point.order(&node.split) != Ordering::Greater;
        let child = match self.remove_below(if goes_left { node.left } else { node.right }, point) {
            Removed::Nothing => return Removed::Nothing,
            Removed::All => {
                self.free.push(at);
                return Removed::Left(if goes_left { node.right } else { node.left });
            }
            Removed::Left(child) => child,
        };
        let here = &mut self.nodes[at as usize];
        if goes_left {
            here.left = child;
        } else {
            here.right = child;
        }
        // A line above all points is still above all others.
        if node.bridge.0.id == point.id || node.bridge.1.id == point.id {
            self.nodes[at as usize].bridge = self.bridge_of(at);
        }
        Removed::Left(self.balance(at))
    }

    // ---- balance, as in an AVL tree ----

    fn height(&self, at: u32) -> u32 {
        self.nodes[at as usize].height
    }

    /// The root of a subtree whose halves differ in height by at most 2, made to differ by at most 1.
    fn balance(&mut self, at: u32) -> u32 {
        let Node { left, right, .. } = self.nodes[at as usize];
        let (high_left, high_right) = (self.height(left), self.height(right));
        if high_left > high_right + 1 {
            let Node { left: outer, right: inner, .. } = self.nodes[left as usize];
            if self.height(inner) > self.height(outer) {
                self.nodes[at as usize].left = self.rotate_left(left);
            }
            return self.rotate_right(at);
        }
        if high_right > high_left + 1 {
            let Node { left: inner, right: outer, .. } = self.nodes[right as usize];
            if self.height(inner) > self.height(outer) {
                self.nodes[at as usize].right = self.rotate_right(right);
            }
            return self.rotate_left(at);
        }
        self.nodes[at as usize].height = 1 + high_left.max(high_right);
        at
    }

    fn rotate_right(&mut self, at: u32) -> u32 {
        let top = self.nodes[at as usize].left;
        self.nodes[at as usize].left = self.nodes[top as usize].right;
        self.nodes[top as usize].right = at;
        self.renew(at);
        self.renew(top);
        top
    }

    fn rotate_left(&mut self, at: u32) -> u32 {
        let top = self.nodes[at as usize].right;
        self.nodes[at as usize].right = self.nodes[top as usize].left;
        self.nodes[top as usize].left = at;
        self.renew(at);
        self.renew(top);
        top
    }

    /// Works out bridge and height of a node with new halves. A node's split stays right: both rotations keep the
    /// order.
    fn renew(&mut self, at: u32) {
        let Node { left, right, .. } = self.nodes[at as usize];
        self.nodes[at as usize].height = 1 + self.height(left).max(self.height(right));
        self.nodes[at as usize].bridge = self.bridge_of(at);
    }

    // ---- bridges ----

    /// Where a line through a point on the left touches the hull of a subtree. O(log n).
    fn touch_right<'a>(&'a self, mut node: &'a Node, from: Point) -> Point {
        while !node.is_leaf() {
            let (c, d) = node.bridge;
            let right = c.x == d.x || above(from, c, d) > 0.0;
            node = &self.nodes[if right { node.right } else { node.left } as usize];
        }
        node.split
    }

    /// Where a line through a point on the right touches the hull of a subtree; points below it count only if all are
    /// there. O(log n).
    fn touch_left<'a>(&'a self, mut node: &'a Node, from: Point) -> Point {
        while !node.is_leaf() {
            let (a, b) = node.bridge;
            let left = a.x != b.x && (b.x == from.x || above(a, b, from) > 0.0);
            node = &self.nodes[if left { node.left } else { node.right } as usize];
        }
        node.split
    }

    /// The bridge between the halves of a node. Each step leaves a half of one side behind that can't hold an end of
    /// it. O(log n).
    fn bridge_of(&self, at: u32) -> (Point, Point) {
        let node = &self.nodes[at as usize];
        let between = node.split.x;
        let (mut left, mut right) = (&self.nodes[node.left as usize], &self.nodes[node.right as usize]);
        loop {
            let ((a, b), (c, d)) = (left.bridge, right.bridge);
            let child = |at: u32| &self.nodes[at as usize];
            match (left.is_leaf(), right.is_leaf()) {
                (true, _) => {
                    let q = self.touch_right(right, a);
                    // The end on the left may be one of several equal points: those below the other end don't count.
                    let p = if a.x == q.x { self.touch_left(child(node.left), q) } else { a };
                    return (p, q);
                }
                (false, true) => return (self.touch_left(left, c), c),
                (false, false) => {}
            }
            // The higher of two points above each other.
            if a.x == b.x {
                left = child(left.right);
            } else if c.x == d.x {
                right = child(right.right);
            } else if above(a, b, c) > 0.0 || above(a, b, d) > 0.0 {
                // b lies below the line from a to one of them, and so does all that is right of b.
                left = child(left.left);
            } else if above(c, d, b) > 0.0 || above(c, d, a) > 0.0 {
                right = child(right.right);
            } else {
                // The lines of both edges meet above the gap. An end left of a needs a point of the right side above
                // the line of a and b and below that of c and d: none is there if they meet left of the gap's right
                // side.
                let (low_c, low_d) = (-above(a, b, c), -above(a, b, d));
                let meet_left = low_d <= low_c || c.x - low_c * (d.x - c.x) / (low_d - low_c) <= between;
                if meet_left {
                    left = child(left.right);
                } else {
                    right = child(right.left);
                }
            }
        }
    }
}

/// What is left of a subtree.
enum Removed {
    /// The point wasn't there.
    Nothing,
    /// The point was all.
    All,
    /// This.
    Left(u32),
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::Random;

    /// Every line of the tree holds: order, heights, bridges above all points of their halves.
    fn check(hull: &Hull) {
        fn points(hull: &Hull, at: u32) -> Vec<Point> {
            let node = &hull.nodes[at as usize];
            if node.is_leaf() {
                return vec![node.split];
            }
            let (left, right) = (points(hull, node.left), points(hull, node.right));
            let (p, q) = node.bridge;
            assert!(hull.height(node.left).abs_diff(hull.height(node.right)) <= 1, "out of balance");
            assert_eq!(node.height, 1 + hull.height(node.left).max(hull.height(node.right)));
            assert!(left.iter().all(|point| point.order(&node.split).is_le()) && left.contains(&p));
            assert!(right.iter().all(|point| point.order(&node.split).is_gt()) && right.contains(&q));
            let all = [left, right].concat();
            if p.x < q.x {
                assert!(all.iter().all(|&point| above(p, q, point) <= 0.0), "a point above {p:?} {q:?}");
            }
            all
        }
        if hull.root != NONE {
            assert_eq!(points(hull, hull.root).len(), hull.len());
        }
    }

    /// Points that come and go, and the best of them for many slopes, against a list. The number of operations.
    fn against_a_list(
        seed: u64,
        operations: u32,
        most: usize,
        tolerance: f64,
        mut point: impl FnMut(&mut Random) -> (f64, f64),
        mut slope: impl FnMut(&mut Random) -> f64,
    ) -> u32 {
        let mut random = Random::new(seed, 0);
        let (mut hull, mut list) = (Hull::default(), Vec::<Point>::new());
        for id in 0..operations {
            // Full and empty by turns.
            let growing = (id / (2 * most as u32)).is_multiple_of(2);
            match random.below(10) {
                0..4 => {
                    let slope = slope(&mut random);
                    let best = list.iter().map(|point| point.worth(slope)).fold(f64::NEG_INFINITY, f64::max);
                    match hull.best(slope) {
                        Some(got) => {
                            let worth = got.worth(slope);
                            assert!(worth >= best - tolerance * (1.0 + best.abs()), "{worth} for {best}");
                        }
                        None => assert!(list.is_empty()),
                    }
                }
                4..9 if list.len() < most && (growing || random.below(3) == 0) => {
                    let (x, y) = point(&mut random);
                    let point = Point { x, y, id: u64::from(id) };
                    hull.insert(point);
                    list.push(point);
                }
                _ if list.is_empty() => assert!(!hull.remove(Point { x: 0.0, y: 0.0, id: u64::MAX })),
                _ => {
                    let point = list.swap_remove(random.below(list.len() as u32) as usize);
                    assert!(hull.remove(point));
                    assert!(!hull.remove(point));
                }
            }
            if id.is_multiple_of(5_000) && tolerance == 0.0 {
                check(&hull);
            }
            assert_eq!(hull.len(), list.len());
        }
        operations
    }

    /// Small whole numbers are exact, and meet each other in every degenerate way: equal points, points above each
    /// other, points on a line.
    #[test]
    fn on_a_grid_the_best_is_exactly_that_of_a_list() {
        let operations = [(3, 20), (10, 40), (100, 60)].map(|(side, most)| {
            let coordinate = move |random: &mut Random| f64::from(random.below(side));
            let slope = |random: &mut Random| f64::from(random.below(400)) / 8.0 - 25.0;
            against_a_list(
                u64::from(side),
                200_000,
                most,
                0.0,
                move |random| (coordinate(random), coordinate(random)),
                slope,
            )
        });
        assert_eq!(operations.iter().sum::<u32>(), 600_000);
    }

    /// All on the hull, where every point matters.
    #[test]
    fn on_a_parabola_the_best_is_exactly_that_of_a_list() {
        let point = |random: &mut Random| {
            let x = f64::from(random.below(2_000)) - 1_000.0;
            (x, -x * x)
        };
        against_a_list(7, 200_000, 100, 0.0, point, |random| f64::from(random.below(4_000)) - 2_000.0);
    }

    /// Coordinates as requests have them: `-e^(b(l - D))` and shares, asked with `e^(bt)`.
    #[test]
    fn as_requests_give_them_the_best_is_that_of_a_list_but_for_rounding() {
        let b = 1e-4;
        let point = move |random: &mut Random| {
            let (deadline, length) = (1e5 * random.unit(), 1e3 * random.unit());
            let passed = if random.below(3) == 0 { 0.0 } else { random.unit() };
            ((1.0 - 2.0 * passed) * (b * (length - deadline)).exp() / length.max(1.0), passed / length.max(1.0))
        };
        against_a_list(8, 200_000, 150, 1e-12, point, move |random| (b * 1e5 * random.unit()).exp());
    }

    #[test]
    fn what_comes_in_order_stays_in_balance() {
        let mut hull = Hull::default();
        let point = |id: u32| Point { x: f64::from(id), y: -f64::from(id * id) / 8.0, id: u64::from(id) };
        (0..3_000).for_each(|id| hull.insert(point(id)));
        check(&hull);
        assert!(hull.height(hull.root) <= 14, "{}", hull.height(hull.root));
        (0..2_900).for_each(|id| assert!(hull.remove(point(id))));
        check(&hull);
        assert_eq!(hull.best(1e9).map(|best| best.id), Some(2_999));
        assert_eq!(hull.best(-1e9).map(|best| best.id), Some(2_900));
        hull.clear();
        assert!(hull.is_empty() && hull.best(1.0).is_none());
    }
}
