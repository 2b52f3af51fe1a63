//! Axes with round ticks.

use super::{LEFT, PLOT, Panel, text};
use svg::node::element::{Group, Line, Rectangle};

/// Ticks of bytes at most, beside that at 0.
const BYTE_TICKS: u64 = 5;

/// Ticks of operations at most, beside that at 0.
const STEP_TICKS: usize = 6;

const GRID: &str = "#dddddd";

/// 0, and multiples of a power of two up to `most`.
fn byte_ticks(most: u64) -> Vec<u64> {
    let step = (0..64).map(|power| 1_u64 << power).find(|step| most / step <= BYTE_TICKS);
    let step = step.unwrap_or(1 << 63);
    (0..=most / step).map(|number| number * step).collect()
}

/// Bytes in the largest unit that they have one of: `512 KiB`, `1.5 MiB`. Exact for a tick.
fn byte_label(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = bytes.checked_ilog2().unwrap_or(0) as usize / 10;
    match bytes {
        0 => String::from("0"),
        _ => format!("{} {}", bytes as f64 / (1_u64 << (10 * power)) as f64, units[power]),
    }
}

/// 0, and multiples of 1, 2 or 5 times a power of ten up to `most`.
fn step_ticks(most: usize) -> Vec<usize> {
    let steps = (0..19).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_usize.pow(power)));
    let step = steps.into_iter().find(|step| most / step <= STEP_TICKS).unwrap_or(usize::MAX);
    (0..=most / step).map(|number| number * step).collect()
}

fn height(panel: Panel, bytes: u64, most: u64) -> f64 {
    let part = bytes as f64 / most.max(1) as f64;
    panel.top + panel.height * (1.0 - part)
}

fn place(step: usize, steps: usize) -> f64 {
    LEFT + PLOT * step as f64 / steps as f64
}

/// A panel's lines at its ticks, which lie under the drawing.
pub(super) fn grid(panel: Panel, most: u64, steps: usize) -> Group {
    let group = Group::new().set("class", "grid").set("stroke", GRID);
    let line = |(x1, y1, x2, y2): (f64, f64, f64, f64)| {
        Line::new().set("x1", x1).set("y1", y1).set("x2", x2).set("y2", y2)
    };
    let across = byte_ticks(most).into_iter().map(|bytes| {
        let y = height(panel, bytes, most);
        line((LEFT, y, LEFT + PLOT, y))
    });
    let down = step_ticks(steps).into_iter().map(|step| {
        let x = place(step, steps);
        line((x, panel.top, x, panel.top + panel.height))
    });
    across.chain(down).fold(group, Group::add)
}

/// The lines of a panel, and its axis of bytes.
pub(super) fn frame(panel: Panel, most: u64, label: &str) -> Group {
    let middle = panel.top + panel.height / 2.0;
    let group = Group::new()
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
    byte_ticks(most).into_iter().fold(group, |group, bytes| {
        let y = height(panel, bytes, most) + 4.0;
        group.add(text(LEFT - 6.0, y, "end", &byte_label(bytes)))
    })
}

/// The axis of operations, below a panel.
pub(super) fn across(panel: Panel, steps: usize) -> Group {
    let foot = panel.top + panel.height;
    let group = Group::new().set("class", "axis");
    let group = step_ticks(steps).into_iter().fold(group, |group, step| {
        group.add(text(place(step, steps), foot + 18.0, "middle", &step.to_string()))
    });
    group.add(text(LEFT + PLOT / 2.0, foot + 40.0, "middle", "operation of the log (number)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_bytes_are_round() {
        let labels = |most| byte_ticks(most).into_iter().map(byte_label).collect::<Vec<_>>();
        assert_eq!(labels(0), ["0"]);
        assert_eq!(labels(1), ["0", "1 B"]);
        assert_eq!(labels(3), ["0", "1 B", "2 B", "3 B"]);
        assert_eq!(labels(1000), ["0", "256 B", "512 B", "768 B"]);
        assert_eq!(labels(2 << 20), ["0", "512 KiB", "1 MiB", "1.5 MiB", "2 MiB"]);
        assert_eq!(labels(65_851_000), ["0", "16 MiB", "32 MiB", "48 MiB"]);
        assert_eq!(labels(5 << 28), ["0", "256 MiB", "512 MiB", "768 MiB", "1 GiB", "1.25 GiB"]);
        assert_eq!(labels(u64::MAX), ["0", "4 EiB", "8 EiB", "12 EiB"]);
    }

    #[test]
    fn ticks_of_operations_are_round() {
        assert_eq!(step_ticks(1), [0, 1]);
        assert_eq!(step_ticks(7), [0, 2, 4, 6]);
        assert_eq!(step_ticks(1000), [0, 200, 400, 600, 800, 1000]);
        assert_eq!(step_ticks(40_000), [0, 10_000, 20_000, 30_000, 40_000]);
        assert_eq!(step_ticks(3_456_789)[..2], [0, 500_000]);
        assert!((1..10_000).all(|steps| (2..=7).contains(&step_ticks(steps).len())));
        assert!(step_ticks(usize::MAX).len() <= 7);
    }
}
