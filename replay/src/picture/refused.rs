//! Marks of the allocations that were refused.

use super::{LEFT, PLOT, Panel};
use crate::plan::Plan;
use crate::report::Failed;
use crate::words::line;
use svg::node::element::{Group, Line, Polygon, Title};

const RED: &str = "#b00020";

/// Columns with a mark of their own at most, so that the picture does not grow with the log.
const COLUMNS: usize = 540;

/// Refusals of one column that are named.
const SHOWN: usize = 3;

/// A triangle that points down at a point.
pub(super) fn triangle(x: f64, y: f64) -> Polygon {
    let points =
        format!("{:.1},{:.1} {:.1},{:.1} {x:.1},{y:.1}", x - 5.0, y - 9.0, x + 5.0, y - 9.0);
    Polygon::new().set("points", points).set("fill", RED)
}

/// A triangle above the panel and a line through it, for each column with refusals.
pub(super) fn marks(plan: &Plan, failures: &[Failed], panel: Panel, steps: usize) -> Group {
    let mut group = Group::new().set("class", "refused");
    let column = |failed: &Failed| failed.step * COLUMNS.min(steps) / steps;
    for refused in failures.chunk_by(|one, next| column(one) == column(next)) {
        let x = LEFT + PLOT * refused[0].step as f64 / steps as f64;
        let mut words: Vec<String> = refused
            .iter()
            .take(SHOWN)
            .map(|failed| {
                format!("{}: {} B refused", line(plan.line_word, failed.line), failed.bytes)
            })
            .collect();
        if refused.len() > SHOWN {
            words.push(format!("and {} more", refused.len() - SHOWN));
        }
        let line = Line::new()
            .set("x1", format!("{x:.1}"))
            .set("x2", format!("{x:.1}"))
            .set("y1", panel.top)
            .set("y2", panel.top + panel.height)
            .set("stroke", RED)
            .set("stroke-width", 0.5);
        let mark = Group::new()
            .add(Title::new(words.join("\n")))
            .add(triangle(x, panel.top - 1.0))
            .add(line);
        group = group.add(mark);
    }
    group
}
