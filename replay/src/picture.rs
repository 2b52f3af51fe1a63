//! A replay as a picture: who has which part of the reserved memory, and when.

mod cells;
mod space;

use crate::engine::{Observation, Replayed};
use crate::plan::Plan;
use bytesize::ByteSize;
use cells::{Area, Grid};
use space::Space;
use std::ops::Range;
use svg::Document;
use svg::node::element::{Group, Path, Polyline, Rectangle, Text, Title};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 820.0;
const LEFT: f64 = 100.0;
const PLOT: f64 = 1080.0;

/// A panel's top and height.
#[derive(Clone, Copy)]
struct Panel {
    top: f64,
    height: f64,
}

const ADDRESSES: Panel = Panel { top: 70.0, height: 440.0 };
const CURVES: Panel = Panel { top: 560.0, height: 200.0 };

/// More blocks than this are drawn by cells, so that the picture does not grow with the log.
const SINGLE: usize = 2000;

/// Okabe and Ito's, which the colour-blind tell apart, and two greys.
const COLOURS: [&str; 9] = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#7f3c8d",
    "#666666",
];

/// Streams that the legend names.
const NAMED: usize = 6;

/// Draws a replay as SVG. Its size has a bound, however long the log.
pub fn draw(plan: &Plan, replayed: &Replayed) -> String {
    let Replayed { report, observation } = replayed;
    let steps = plan.steps.len().max(1);
    let space = Space::new(&observation.segments);
    let title = format!("{} on {}", report.resource, report.device);
    let document = Document::new()
        .set("viewBox", (0, 0, WIDTH, HEIGHT))
        .set("width", WIDTH)
        .set("height", HEIGHT)
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(Title::new(format!("Memory of {title}")))
        .add(Rectangle::new().set("width", "100%").set("height", "100%").set("fill", "white"))
        .add(text(LEFT, 22.0, "start", &title).set("font-size", 16))
        .add(legend(&plan.streams))
        .add(reserved(observation, &space, steps))
        .add(blocks(plan, observation, &space, steps))
        .add(frame(ADDRESSES, space.bytes(), "address in reserved space (bytes)"))
        .add(curves(observation, report.peak_reserved, steps))
        .add(frame(CURVES, report.peak_reserved, "memory (bytes)"))
        .add(across(steps));
    document.to_string()
}

fn text(x: f64, y: f64, anchor: &str, content: &str) -> Text {
    Text::new(content).set("x", x).set("y", y).set("text-anchor", anchor)
}

fn colour(stream: usize) -> &'static str {
    COLOURS[stream % COLOURS.len()]
}

fn legend(streams: &[String]) -> Group {
    let mut group = Group::new().set("class", "legend");
    let mut x = LEFT;
    let mut entry = |fill: &str, words: &str| {
        let mark = Rectangle::new()
            .set("x", x)
            .set("y", 40)
            .set("width", 12)
            .set("height", 12)
            .set("fill", fill);
        let name = text(x + 17.0, 51.0, "start", words);
        x += 40.0 + 7.0 * words.chars().count() as f64;
        (mark, name)
    };
    let mut entries: Vec<_> = Vec::new();
    for (number, stream) in streams.iter().enumerate().take(NAMED) {
        let short: String = stream.chars().take(18).collect();
        entries.push(entry(colour(number), &format!("stream {short}")));
    }
    if streams.len() > NAMED {
        entries.push(entry("none", &format!("and {} more", streams.len() - NAMED)));
    }
    entries.push(entry(RESERVED, "reserved"));
    for (mark, name) in entries {
        group = group.add(mark).add(name);
    }
    group
}

const RESERVED: &str = "#e4e4e4";

/// The rectangle of some steps and bytes, from the left and the bottom, each as parts of 1.
fn rectangle(area: Area, panel: Panel) -> Rectangle {
    let round = |value: f64| (value * 100.0).round() / 100.0;
    Rectangle::new()
        .set("x", round(LEFT + area.from * PLOT))
        .set("y", round(panel.top + (1.0 - area.top) * panel.height))
        .set("width", round((area.to - area.from) * PLOT))
        .set("height", round((area.top - area.bottom) * panel.height))
}

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

fn blocks(plan: &Plan, observation: &Observation, space: &Space, steps: usize) -> Group {
    let mut group = Group::new().set("class", "blocks");
    let area = |p: &crate::engine::Placed| space.area(p.address, p.bytes, p.from, p.to, steps);
    if observation.placed.len() <= SINGLE {
        for placed in &observation.placed {
            let Some(area) = area(placed) else { continue };
            let words = format!(
                "{} B on stream {}, {} {}",
                placed.asked,
                plan.streams[placed.stream],
                plan.line_word,
                plan.steps[placed.from].line,
            );
            group = group.add(
                rectangle(area, ADDRESSES)
                    .set("fill", colour(placed.stream))
                    .set("stroke", "white")
                    .set("stroke-width", 0.3)
                    .add(Title::new(words)),
            );
        }
        return group;
    }
    let colours = plan.streams.len().clamp(1, COLOURS.len());
    let areas = observation
        .placed
        .iter()
        .filter_map(|placed| Some((placed.stream % COLOURS.len(), area(placed)?)));
    for (number, path) in Grid::fill(areas, colours).paths().into_iter().enumerate() {
        let path = Path::new().set("fill", colour(number)).set("d", path);
        group = group.add(path.set("transform", placing()));
    }
    group
}

/// The lines of a panel, and its axis of bytes.
fn frame(panel: Panel, most: u64, label: &str) -> Group {
    let middle = panel.top + panel.height / 2.0;
    let mut group = Group::new()
        .set("class", "axis")
        .add(
            Rectangle::new()
                .set("x", LEFT)
                .set("y", panel.top)
                .set("width", PLOT)
                .set("height", panel.height)
                .set("fill", "none")
                .set("stroke", "black"),
        )
        .add(
            text(16.0, middle, "middle", label)
                .set("transform", format!("rotate(-90 16 {middle})")),
        );
    for quarter in 0..=4_u64 {
        let y = panel.top + panel.height * (1.0 - quarter as f64 / 4.0);
        let bytes = (u128::from(most) * u128::from(quarter) / 4) as u64;
        let words = ByteSize::b(bytes).to_string();
        group = group.add(text(LEFT - 6.0, y + 4.0, "end", &words));
    }
    group
}

/// The axis of steps, below both panels.
fn across(steps: usize) -> Group {
    let foot = CURVES.top + CURVES.height;
    let mut group = Group::new().set("class", "axis");
    for fifth in 0..=5 {
        let step = steps * fifth / 5;
        // A short log has fewer than five.
        if fifth > 0 && step == steps * (fifth - 1) / 5 {
            continue;
        }
        let x = LEFT + PLOT * step as f64 / steps as f64;
        group = group.add(text(x, foot + 18.0, "middle", &step.to_string()));
    }
    group.add(text(LEFT + PLOT / 2.0, foot + 40.0, "middle", "operation of the log (number)"))
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
        let words = text(x, CURVES.top - 8.0, "start", name).set("fill", colour);
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
