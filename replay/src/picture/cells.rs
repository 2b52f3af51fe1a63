//! Rectangles, as many as there may be, drawn into cells of about two pixels and joined again.

use std::collections::HashMap;
use std::fmt::Write;

/// A rectangle, in parts of the panel from the left and the bottom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) bottom: f64,
    pub(super) top: f64,
}

const COLUMNS: usize = 540;
const ROWS: usize = 220;

/// Cells, by rows from the top. A cell has the colour of the last rectangle that touches it.
pub(super) struct Grid {
    /// 0 for none, else a colour's number and 1.
    cells: Vec<u8>,
    colours: usize,
}

impl Grid {
    /// The size of a cell, where the grid covers so much.
    pub(super) fn cell(width: f64, height: f64) -> (f64, f64) {
        (width / COLUMNS as f64, height / ROWS as f64)
    }

    /// Draws areas, each with the number of its colour, of `colours`.
    pub(super) fn fill(areas: impl Iterator<Item = (usize, Area)>, colours: usize) -> Self {
        let mut grid = Self { cells: vec![0; COLUMNS * ROWS], colours };
        let reach = |from: f64, to: f64, cells: usize| {
            let first = ((from * cells as f64) as usize).min(cells - 1);
            // What is smaller than a cell is seen as one.
            let last = ((to * cells as f64).ceil() as usize).clamp(first + 1, cells);
            first..last
        };
        for (colour, area) in areas {
            let columns = reach(area.from, area.to, COLUMNS);
            for row in reach(1.0 - area.top, 1.0 - area.bottom, ROWS) {
                grid.cells[row * COLUMNS..][columns.clone()].fill(colour as u8 + 1);
            }
        }
        grid
    }

    /// For each colour the data of a path: rectangles in cells.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = vec![String::new(); self.colours];
        // Runs that the row above had: column, length, colour; and the row that they began in.
        let mut open: HashMap<(usize, usize, u8), usize> = HashMap::new();
        for row in 0..=ROWS {
            let mut here = HashMap::new();
            if row < ROWS {
                let mut column = 0;
                for run in self.cells[row * COLUMNS..][..COLUMNS].chunk_by(|a, b| a == b) {
                    if run[0] > 0 {
                        let key = (column, run.len(), run[0]);
                        here.insert(key, open.remove(&key).unwrap_or(row));
                    }
                    column += run.len();
                }
            }
            let mut done: Vec<_> = open.drain().collect();
            // So that the same replay gives the same picture.
            done.sort_unstable();
            for ((column, length, colour), first) in done {
                if let Some(path) = paths.get_mut(usize::from(colour) - 1) {
                    let height = row - first;
                    // Writing to a string does not fail.
                    let _ = write!(path, "M{column} {first}h{length}v{height}h-{length}z");
                }
            }
            open = here;
        }
        paths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_joined_to_rectangles() {
        let half = Area { from: 0.0, to: 0.5, bottom: 0.0, top: 1.0 };
        let speck = Area { from: 0.75, to: 0.75, bottom: 0.5, top: 0.5 };
        let paths = Grid::fill([(0, half), (1, speck)].into_iter(), 2).paths();
        assert_eq!(paths, ["M0 0h270v220h-270z", "M405 110h1v1h-1z"]);
    }

    #[test]
    fn what_lies_above_splits_what_lies_below() {
        let all = Area { from: 0.0, to: 1.0, bottom: 0.0, top: 1.0 };
        let corner = Area { from: 0.5, to: 1.0, bottom: 0.5, top: 1.0 };
        let paths = Grid::fill([(0, all), (1, corner)].into_iter(), 2).paths();
        assert_eq!(paths, ["M0 0h270v110h-270zM0 110h540v110h-540z", "M270 0h270v110h-270z"]);
    }
}
