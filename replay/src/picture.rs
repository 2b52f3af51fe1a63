//! A replay as a picture: who has which part of the reserved memory, and when.

mod axis;
mod cells;
mod legend;
mod refused;
mod space;

use crate::engine::{Observation, Replayed};
use crate::plan::Plan;
use crate::report::Report;
use crate::words::{count, line};
use axis::{across, frame, grid};
use bytesize::ByteSize;
use cells::{Area, Grid};
use legend::{Palette, elided, legend};
use space::Space;
use std::ops::Range;
use svg::Document;
use svg::node::element::{Group, Path, Polyline, Rectangle, Text, Title};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 862.0;
const LEFT: f64 = 100.0;
const PLOT: f64 = 1080.0;

/// A panel's top and height.
#[derive(Clone, Copy)]
struct Panel {
    top: f64,
    height: f64,
}

const ADDRESSES: Panel = Panel { top: 112.0, height: 440.0 };
const CURVES: Panel = Panel { top: 602.0, height: 200.0 };

/// More blocks than this are drawn by cells, so that the picture does not grow with the log.
const SINGLE: usize = 2000;

/// Draws a replay as SVG. Its size has a bound, however long the log.
pub fn draw(plan: &Plan, replayed: &Replayed) -> String {
    let Replayed { report, observation } = replayed;
    let steps = plan.steps.len().max(1);
    let space = Space::new(&observation.segments);
    let title = report.title();
    let palette = Palette::new(plan);
    let document = Document::new()
        .set("viewBox", (0, 0, WIDTH, HEIGHT))
        .set("width", WIDTH)
        .set("height", HEIGHT)
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(Title::new(&title))
        .add(Rectangle::new().set("width", "100%").set("height", "100%").set("fill", "white"))
        .add(text(LEFT, 22.0, "start", &elided(&title, WIDEST_TITLE)).set("font-size", 16))
        .add(text(LEFT, 40.0, "start", &summary(report)).set("fill", "#444444"))
        .add(legend(plan, &palette, report.failures.len()))
        .add(grid(ADDRESSES, space.bytes(), steps))
        .add(reserved(observation, &space, steps))
        .add(blocks(plan, observation, &space, &palette))
        .add(frame(ADDRESSES, space.bytes(), "address in reserved space (bytes)"))
        .add(grid(CURVES, report.peak_reserved, steps))
        .add(curves(observation, report.peak_reserved, steps))
        .add(frame(CURVES, report.peak_reserved, "memory (bytes)"))
        .add(refused::marks(plan, &report.failures, CURVES, steps))
        .add(across(CURVES, steps));
    document.to_string()
}

/// The figures of the report that the curves show.
fn summary(report: &Report) -> String {
    format!(
        "peak live {}, peak reserved {}, {}, {} refused",
        ByteSize::b(report.peak_live),
        ByteSize::b(report.peak_reserved),
        count(report.operations, "operation"),
        report.failures.len(),
    )
}

fn text(x: f64, y: f64, anchor: &str, content: &str) -> Text {
    Text::new(content).set("x", x).set("y", y).set("text-anchor", anchor)
}

/// In the pixels that a small text of as many characters takes.
const WIDEST_TITLE: f64 = 800.0;

const RESERVED: &str = "#e4e4e4";

/// Pixels that a rectangle has each way at least: a smaller one is not seen.
const LEAST: f64 = 0.5;

/// A start and a length in pixels, of which the end lies at most at `end`.
fn seen(start: f64, length: f64, end: f64) -> (f64, f64) {
    let round = |value: f64| (value * 100.0).round() / 100.0;
    let length = length.max(LEAST);
    (round(start.min(end - length)), round(length))
}

/// The rectangle of some steps and bytes, from the left and the bottom, each as parts of 1.
fn rectangle(area: Area, panel: Panel) -> Rectangle {
    let (x, width) = seen(LEFT + area.from * PLOT, (area.to - area.from) * PLOT, LEFT + PLOT);
    let top = panel.top + (1.0 - area.top) * panel.height;
    let height = (area.top - area.bottom) * panel.height;
    let (y, height) = seen(top, height, panel.top + panel.height);
    Rectangle::new().set("x", x).set("y", y).set("width", width).set("height", height)
}

/// The white line around a block: its inner half hides no more than half of the smallest.
const EDGE: f64 = LEAST / 2.0;

/// The blocks of the device, behind those that were handed out.
fn reserved(observation: &Observation, space: &Space, steps: usize) -> Group {
    let areas = observation
        .segments
        .iter()
        .filter_map(|s| space.area(s.address, s.bytes, s.from, s.to, steps).map(|area| (0, area)));
    let group = Group::new().set("class", "reserved").set("fill", RESERVED);
    if observation.segments.len() <= SINGLE {
        return areas.fold(group, |group, (_, area)| group.add(rectangle(area, ADDRESSES)));
    }
    Grid::fill(areas, 1).paths().into_iter().fold(group, |group, path| {
        group.add(Path::new().set("transform", placing()).set("d", path))
    })
}

/// From the grid's cells to the panel.
fn placing() -> String {
    let (x, y) = Grid::cell(PLOT, ADDRESSES.height);
    format!("translate({LEFT} {}) scale({x} {y})", ADDRESSES.top)
}

fn blocks(plan: &Plan, observation: &Observation, space: &Space, palette: &Palette) -> Group {
    let steps = plan.steps.len().max(1);
    let mut group = Group::new().set("class", "blocks");
    let area = |p: &crate::engine::Placed| space.area(p.address, p.bytes, p.from, p.to, steps);
    if observation.placed.len() <= SINGLE {
        for placed in &observation.placed {
            let Some(area) = area(placed) else { continue };
            let words = format!(
                "{} B on stream {}, {}",
                placed.asked,
                plan.streams[placed.stream].name,
                line(plan.line_word, plan.steps[placed.from].line),
            );
            group = group.add(
                rectangle(area, ADDRESSES)
                    .set("fill", palette.colour(palette.number(placed.stream)))
                    .set("stroke", "white")
                    .set("stroke-width", EDGE)
                    .add(Title::new(words)),
            );
        }
        return group;
    }
    let areas = observation
        .placed
        .iter()
        .filter_map(|placed| Some((palette.number(placed.stream), area(placed)?)));
    for (number, path) in Grid::fill(areas, palette.len()).paths().into_iter().enumerate() {
        let path = Path::new().set("fill", palette.colour(number)).set("d", path);
        group = group.add(path.set("transform", placing()));
    }
    group
}

/// Live bytes, their peak so far, and reserved bytes: the most of each column of pixels.
fn curves(observation: &Observation, most: u64, steps: usize) -> Group {
    let mut group = Group::new().set("class", "curves").set("fill", "none");
    let mut peak = 0;
    let peaks: Vec<u64> = observation
        .live
        .iter()
        .map(|live| {
            peak = peak.max(*live);
            peak
        })
        .collect();
    let curves = [
        ("reserved", &observation.reserved, "#888888", "none"),
        ("peak live", &peaks, "#d55e00", "4 3"),
        ("live", &observation.live, "#0072b2", "none"),
    ];
    for (number, (name, values, colour, dashes)) in curves.into_iter().enumerate() {
        let mut points = String::new();
        for (reach, value) in columns(values, PLOT as usize) {
            let x = |step: usize| LEFT + PLOT * step as f64 / steps as f64;
            let part = value as f64 / most.max(1) as f64;
            let y = CURVES.top + CURVES.height * (1.0 - part.min(1.0));
            let (from, to) = (x(reach.start), x(reach.end));
            points.push_str(&format!("{from:.1},{y:.1} {to:.1},{y:.1} "));
        }
        let line = Polyline::new()
            .set("points", points.trim_end())
            .set("stroke", colour)
            .set("stroke-dasharray", dashes)
            .set("stroke-width", 1.5)
            .add(Title::new(name));
        let x = LEFT + 130.0 * number as f64;
        let words = text(x, CURVES.top - 14.0, "start", name).set("fill", colour);
        group = group.add(line).add(words);
    }
    group
}

/// At most `most` pairs of steps in a row and the largest value in them. What is so after a step is
/// so until the next.
fn columns(values: &[u64], most: usize) -> impl Iterator<Item = (Range<usize>, u64)> {
    let each = values.len().div_ceil(most).max(1);
    values.chunks(each).enumerate().map(move |(chunk, values)| {
        let first = chunk * each;
        (first..first + values.len(), values.iter().copied().max().unwrap_or(0))
    })
}
