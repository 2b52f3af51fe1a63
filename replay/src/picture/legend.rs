//! Which stream has which colour, and the words that say so.

use super::{LEFT, PLOT, RESERVED, refused, text};
use crate::plan::{Plan, What};
use crate::words::count;
use svg::node::element::{Group, Rectangle, Title};

/// Okabe and Ito's, which the colour-blind tell apart, and a violet.
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#7f3c8d"];

/// Of all streams that have no colour of their own.
const OTHERS: &str = "#666666";

/// The top of the first row, and from each row to the next.
const TOP: f64 = 50.0;
const ROW: f64 = 18.0;

/// The widest name of a stream: 24 characters of ASCII.
const WIDEST: f64 = 24.0 * 7.2;

/// The colours of streams: those with the most bytes have one each, the others share a grey.
pub(super) struct Palette {
    /// By stream.
    numbers: Vec<usize>,
    /// The streams with a colour, by their first use.
    ranked: Vec<usize>,
}

impl Palette {
    pub(super) fn new(plan: &Plan) -> Self {
        let mut bytes = vec![0_u128; plan.streams.len()];
        for step in &plan.steps {
            if let What::Allocate { size, .. } = step.what {
                bytes[step.stream] += size as u128;
            }
        }
        let mut ranked: Vec<usize> = (0..bytes.len()).collect();
        ranked.sort_by_key(|stream| std::cmp::Reverse(bytes[*stream]));
        ranked.truncate(COLOURS.len());
        ranked.sort_unstable();
        let mut numbers = vec![ranked.len(); bytes.len()];
        for (number, stream) in ranked.iter().enumerate() {
            numbers[*stream] = number;
        }
        Self { numbers, ranked }
    }

    /// The number of a stream's colour.
    pub(super) fn number(&self, stream: usize) -> usize {
        self.numbers[stream]
    }

    /// How many colours there are.
    pub(super) fn len(&self) -> usize {
        self.ranked.len() + usize::from(self.others() > 0)
    }

    pub(super) fn colour(&self, number: usize) -> &'static str {
        if number < self.ranked.len() { COLOURS[number] } else { OTHERS }
    }

    fn others(&self) -> usize {
        self.numbers.len() - self.ranked.len()
    }
}

/// About as many pixels as a text takes.
pub(super) fn width(words: &str) -> f64 {
    words.chars().map(|c| if c.is_ascii() { 7.2 } else { 13.0 }).sum()
}

/// A name that is no wider than `widest`: of a longer one the start and the end, since handles differ
/// at their ends.
pub(super) fn elided(name: &str, widest: f64) -> String {
    if width(name) <= widest {
        return name.to_owned();
    }
    let room = (widest - width("…")) / 23.0;
    let fitting = |chars: &mut dyn Iterator<Item = char>, room: f64| {
        let mut taken = 0.0;
        let fits = |c: &char| {
            taken += width(c.encode_utf8(&mut [0; 4]));
            // Sums of such numbers are not exact.
            taken <= room + 1e-6
        };
        chars.take_while(fits).collect::<Vec<char>>()
    };
    let mut words: String = fitting(&mut name.chars(), room * 11.0).into_iter().collect();
    words.push('…');
    words.extend(fitting(&mut name.chars().rev(), room * 12.0).into_iter().rev());
    words
}

/// Marks and words, in rows that end where the panels do.
pub(super) fn legend(plan: &Plan, palette: &Palette, refusals: usize) -> Group {
    let mut group = Group::new().set("class", "legend");
    let (mut x, mut y) = (LEFT, TOP);
    let mut entry = |mark: &dyn Fn(f64, f64) -> Group, words: &str, full: &str| {
        let wide = 17.0 + width(words);
        if x > LEFT && x + wide > LEFT + PLOT {
            (x, y) = (LEFT, y + ROW);
        }
        let words = text(x + 17.0, y + 11.0, "start", words).add(Title::new(full));
        group = std::mem::take(&mut group).add(mark(x, y)).add(words);
        x += wide + 23.0;
    };
    let square = |fill: &'static str| {
        move |x: f64, y: f64| {
            let square = Rectangle::new().set("x", x).set("y", y);
            Group::new().add(square.set("width", 12).set("height", 12).set("fill", fill))
        }
    };
    for (number, stream) in palette.ranked.iter().enumerate() {
        let name = &plan.streams[*stream].name;
        let words = format!("stream {}", elided(name, WIDEST));
        entry(&square(palette.colour(number)), &words, name);
    }
    if palette.others() > 0 {
        let words = count(palette.others(), "other stream");
        entry(&square(OTHERS), &words, "each with less memory than those with a colour");
    }
    entry(&square(RESERVED), "reserved", "taken from the device, and not handed out");
    if refusals > 0 {
        let mark = |x: f64, y: f64| Group::new().add(refused::triangle(x + 6.0, y + 11.0));
        entry(&mark, &format!("refused ({refusals})"), "allocations that were refused");
    }
    group
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{LogStream, StreamKind};
    use crate::plan::Step;

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(elided("0x557e194cb810", WIDEST), "0x557e194cb810");
        let long = "abcdefghijklmnopqrstuvwxyz0123456789";
        let short = elided(long, WIDEST);
        assert!(short.starts_with("abcdefghij") && short.ends_with("z0123456789"), "{short}");
        for name in [long, "ストリームストリームストリームストリーム"] {
            let short = elided(name, WIDEST);
            assert!(short.contains('…') && width(&short) <= WIDEST, "{short}");
        }
    }

    #[test]
    fn the_largest_streams_have_a_colour_each() {
        let sizes = [5, 100, 7, 8, 9, 10, 11, 12, 13, 14];
        let stream =
            |number: usize| LogStream { name: number.to_string(), kind: StreamKind::Other };
        let step = |(stream, size): (usize, &usize)| Step {
            line: 1,
            thread: 0,
            stream,
            time: None,
            what: What::Allocate { slot: stream, size: *size },
        };
        let plan = Plan {
            streams: (0..10).map(stream).collect(),
            steps: sizes.iter().enumerate().map(step).collect(),
            ..Plan::default()
        };
        let palette = Palette::new(&plan);
        assert_eq!((palette.len(), palette.others()), (9, 2));
        let numbers: Vec<_> = (0..10).map(|stream| palette.number(stream)).collect();
        assert_eq!(numbers, [8, 0, 8, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((palette.colour(0), palette.colour(8)), (COLOURS[0], OTHERS));
    }
}
