//! Draws RMM's figures of random allocations from the rows of a run: time against maximum size.

use crate::Place;
use crate::rows::{Row, read};
use anyhow::{Result, anyhow, bail};
use plotters::prelude::*;
use std::path::{Path, PathBuf};

/// Who is drawn: the peers of the rows (the first that has a row counts), a name, a colour. Ours come
/// last, on top.
const LINES: [(&[&str], &str, RGBColor); 7] = [
    (&["cudaMalloc", "aquifer plain"], "cudaMalloc", RGBColor(110, 110, 110)),
    (&["rmm arena"], "RMM arena", RGBColor(188, 143, 102)),
    (&["cudaMallocAsync"], "cudaMallocAsync", RGBColor(148, 103, 189)),
    (&["torch caching"], "PyTorch", RGBColor(214, 98, 30)),
    (&["rmm pool"], "RMM pool", RGBColor(44, 140, 60)),
    (&["rmm binning"], "RMM binning", RGBColor(130, 180, 60)),
    (&["aquifer pool"], "Aquifer pool", RGBColor(20, 90, 200)),
];

/// The maximum sizes, evenly spaced, as in the figures of RMM's announcement.
const SIZES: [u32; 4] = [1, 64, 1024, 4096];

const SIZE: (u32, u32) = (820, 480);

/// Writes one figure for each count of allocations; returns the files.
pub(crate) fn draw(place: &Place, paths: &[PathBuf], into: &Path) -> Result<Vec<PathBuf>> {
    let rows = read(paths)?;
    let into = place.root.join(into);
    std::fs::create_dir_all(&into)?;
    let mut files = Vec::new();
    for count in [1000, 100_000] {
        let file = into.join(format!("random-{count}.svg"));
        let svg = figure(&rows, count)?;
        std::fs::write(&file, svg)?;
        files.push(file);
    }
    Ok(files)
}

/// The points of one line: where a size stands on the axis, and nanoseconds.
fn points(rows: &[Row], peers: &[&str], count: u32) -> Vec<(f64, f64)> {
    let value = |peer: &str, mib: u32| {
        let workload = format!("random n={count} max={mib}MiB");
        let mut values: Vec<f64> = rows
            .iter()
            .filter(|row| row.peer == peer && row.workload == workload && row.value > 0.0)
            .map(|row| row.value)
            .collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let placed = SIZES.iter().enumerate();
    let first = |mib: u32| peers.iter().find_map(|peer| value(peer, mib));
    placed.filter_map(|(place, &mib)| Some((place as f64, first(mib)?))).collect()
}

/// The powers of ten around the values.
fn decades(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let lowest = values.clone().fold(f64::INFINITY, f64::min).log10().floor();
    let highest = values.fold(0.0, f64::max).log10().ceil();
    (10_f64.powf(lowest), 10_f64.powf(highest.max(lowest + 1.0)))
}

fn figure(rows: &[Row], count: u32) -> Result<String> {
    let lines: Vec<_> = LINES
        .iter()
        .map(|&(peers, name, colour)| (name, colour, points(rows, peers, count)))
        .filter(|(_, _, points)| !points.is_empty())
        .collect();
    if lines.is_empty() {
        bail!("no row is of `random n={count}`");
    }
    let values = lines.iter().flat_map(|(_, _, points)| points.iter().map(|point| point.1));
    let (lowest, highest) = decades(values);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        plot(&area, count, &lines, lowest..highest).map_err(|error| anyhow!("{error}"))?;
        area.present().map_err(|error| anyhow!("{error}"))?;
    }
    Ok(svg)
}

type Line = (&'static str, RGBColor, Vec<(f64, f64)>);

fn plot<'a>(
    area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    count: u32,
    lines: &[Line],
    nanoseconds: std::ops::Range<f64>,
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
    area.fill(&WHITE)?;
    let (diagram, legend) = area.split_horizontally(SIZE.0 - 190);
    let mut chart = ChartBuilder::on(&diagram)
        .caption(format!("Random allocations, n = {count}"), ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(76)
        .build_cartesian_2d(-0.2..3.2_f64, nanoseconds.log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(RGBColor(205, 205, 205))
        .light_line_style(RGBColor(238, 238, 238))
        .x_labels(SIZES.len())
        .x_label_formatter(&|place| size_label(*place))
        .y_label_formatter(&|time| time_label(*time))
        .label_style(("sans-serif", 14))
        .x_desc("maximum size (MiB)")
        .y_desc("time of one operation")
        .axis_desc_style(("sans-serif", 15))
        .draw()?;
    for (index, (name, colour, points)) in lines.iter().enumerate() {
        let width = if name.starts_with("Aquifer") { 3 } else { 2 };
        let style = colour.stroke_width(width);
        chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        chart.draw_series(points.iter().map(|&at| Circle::new(at, 4, colour.filled())))?;
        // The legend begins with the last one.
        let y = 60 + 26 * (lines.len() - 1 - index) as i32;
        legend.draw(&PathElement::new([(6, y), (32, y)], style))?;
        legend.draw(&Circle::new((19, y), 4, colour.filled()))?;
        legend.draw(&Text::new(*name, (42, y - 8), ("sans-serif", 15)))?;
    }
    Ok(())
}

fn size_label(place: f64) -> String {
    let nearest = place.round();
    if (place - nearest).abs() > 1e-6 || nearest < 0.0 {
        return String::new();
    }
    SIZES.get(nearest as usize).map_or_else(String::new, u32::to_string)
}

fn time_label(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        ns if ns >= 1e6 => (ns / 1e6, "ms"),
        ns if ns >= 1e3 => (ns / 1e3, "us"),
        ns => (ns, "ns"),
    };
    format!("{value:.0} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(peer: &str, workload: &str, value: f64) -> Row {
        Row { peer: peer.to_owned(), workload: workload.to_owned(), value }
    }

    #[test]
    fn the_points_are_those_of_the_rows() {
        let rows = [
            row("rmm pool", "random n=1000 max=1024MiB", 255.0),
            row("rmm pool", "random n=1000 max=1MiB", 400.0),
            row("rmm pool", "random n=1000 max=1MiB", 500.0),
            row("rmm pool", "random n=1000 max=1MiB", 423.0),
            row("rmm pool", "random n=100000 max=1MiB", 45_306.0),
            row("rmm binning", "random n=1000 max=1MiB", 173.0),
        ];
        assert_eq!(points(&rows, &["rmm pool"], 1000), [(0.0, 423.0), (2.0, 255.0)]);
        let both = points(&rows, &["rmm binning", "rmm pool"], 1000);
        assert_eq!(both, [(0.0, 173.0), (2.0, 255.0)]);
        assert_eq!(decades([423.0, 255.0].into_iter()), (100.0, 1000.0));
        assert_eq!(decades([1000.0].into_iter()), (1000.0, 10_000.0));
    }

    #[test]
    fn a_figure_names_who_is_in_it() {
        let rows = [
            row("aquifer pool", "random n=1000 max=1MiB", 20.0),
            row("cudaMalloc", "random n=1000 max=4096MiB", 2_092_619.0),
        ];
        let svg = figure(&rows, 1000).unwrap();
        for text in ["Aquifer pool", "cudaMalloc", "n = 1000", "maximum size", "10 ms", "4096"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("RMM"));
        assert!(figure(&rows, 100_000).is_err());
    }
}
