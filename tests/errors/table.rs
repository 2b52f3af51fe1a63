//! The rows: a title, and the text of an error.

use aquifer::Error;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

#[derive(Default)]
pub(crate) struct Table {
    text: String,
    rows: Vec<Row>,
    places: BTreeSet<Place>,
    /// What was to fail, and did not.
    served: Vec<String>,
}

struct Row {
    title: String,
    shown: String,
    advice: Option<String>,
}

/// `file:line` of the place in the source that made an error.
pub(crate) type Place = (String, usize);

impl Table {
    pub(crate) fn begin(&mut self, chapter: &str) {
        let _ = write!(self.text, "# {chapter}\n\n");
    }

    /// Adds an error, which may come with a value.
    pub(crate) fn row(&mut self, title: &str, error: impl Into<Error>) {
        let error = error.into();
        self.add(title, &format!("{error:?}"), &format!("{error:#?}"), error.advice());
    }

    /// Adds the error of a result.
    pub(crate) fn failed<T>(&mut self, title: &str, result: Result<T, impl Into<Error>>) {
        match result {
            Ok(_) => self.served.push(title.into()),
            Err(error) => self.row(title, error),
        }
    }

    /// Adds what `main` and `unwrap` print of an error, and its parts.
    pub(crate) fn add(&mut self, title: &str, shown: &str, parts: &str, advice: Option<&str>) {
        let shown = without_numbers(shown);
        let _ = write!(self.text, "{title}\n    {shown}\n\n");
        let row = Row { title: title.into(), shown, advice: advice.map(without_numbers) };
        assert!(self.rows.iter().all(|other| other.title != title), "two rows of `{title}`");
        self.rows.push(row);
        if let Some(place) = place(parts) {
            self.places.insert(place);
        }
    }
}

impl Table {
    pub(crate) fn places(&self) -> &BTreeSet<Place> {
        &self.places
    }

    /// The rules of every text.
    pub(crate) fn check_style(&self) {
        assert!(self.served.is_empty(), "these are no errors: {:#?}", self.served);
        let mut found = String::new();
        for Row { title, shown, advice } in &self.rows {
            let mut complain = |what: &str| {
                let _ = writeln!(found, "{title}: {what}\n    {shown}");
            };
            // A line of the user's, and carets below it, are as they are.
            let mut own = shown.lines().filter(|line| !line.starts_with("    "));
            if own.any(|line| line.contains("  ")) || shown.contains(" ,") || shown.contains(" ;") {
                complain("has a space too many");
            }
            if shown.contains(" { ") || shown.contains("Some(") {
                complain("shows a structure of Rust");
            }
            if shown.ends_with('.') || shown.ends_with(".)") {
                complain("ends in a full stop");
            }
            if has_number_of_number(shown) {
                complain("has `1 of 2`, which can be misread");
            }
            if let Some(count) = wrong_plural(shown) {
                complain(&format!("`{count}` is no plural"));
            }
            if has_call_twice(shown) {
                complain("names a call of the driver twice");
            }
            match advice {
                Some(advice) if !shown.contains(advice.as_str()) => complain("hides its advice"),
                Some(advice) if advice.trim() != advice => complain("has advice with a blank"),
                _ => {}
            }
        }
        assert!(found.is_empty(), "{found}");
    }

    /// Compares with the file, or writes it if `AQUIFER_BLESS` is set.
    pub(crate) fn compare(&self, path: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        if std::env::var_os("AQUIFER_BLESS").is_some() {
            std::fs::write(&path, &self.text).unwrap();
            return;
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        if expected == self.text {
            return;
        }
        let (old, new): (BTreeSet<_>, BTreeSet<_>) =
            (expected.split("\n\n").collect(), self.text.split("\n\n").collect());
        let gone: String = old.difference(&new).map(|row| format!("- {row}\n")).collect();
        let come: String = new.difference(&old).map(|row| format!("+ {row}\n")).collect();
        panic!("texts differ from {}:\n{gone}{come}", path.display());
    }
}

/// The place that `{:#?}` names.
pub(crate) fn place(parts: &str) -> Option<Place> {
    let at = parts.lines().find_map(|line| line.trim().strip_prefix("at: "))?;
    let mut fields = at.trim_end_matches(',').split(':');
    Some((fields.next()?.into(), fields.next()?.parse().ok()?))
}

/// The text with what differs from run to run left out: addresses, numbers of streams, of contexts and of
/// processes, temporary folders, lines.
fn without_numbers(text: &str) -> String {
    let folder = std::env::temp_dir();
    let text = text.replace(folder.to_string_lossy().as_ref(), "/tmp");
    let mut out = String::new();
    let mut rest = text.as_str();
    let marks = ["0x", "stream ", "context ", "errors-", "graph ", "process ", "UUID ", ".rs:"];
    while !rest.is_empty() {
        let mark = marks.iter().find(|mark| rest.starts_with(**mark));
        let Some(mark) = mark else {
            let next = rest.chars().next().map_or(0, char::len_utf8);
            out.push_str(&rest[..next]);
            rest = &rest[next..];
            continue;
        };
        out.push_str(mark);
        rest = &rest[mark.len()..];
        let digits = rest.find(|c: char| match *mark {
            "0x" => !c.is_ascii_hexdigit(),
            "UUID " => !c.is_ascii_hexdigit() && c != '-',
            _ => !c.is_ascii_digit(),
        });
        let digits = digits.unwrap_or(rest.len());
        if digits > 0 {
            out.push('N');
            rest = &rest[digits..];
        }
        // The column of a line of the tests.
        if *mark == ".rs:" {
            rest = rest.trim_start_matches(|c: char| c == ':' || c.is_ascii_digit());
        }
    }
    out
}

fn words(text: &str) -> Vec<&str> {
    text.split(|c: char| c.is_whitespace() || "();:,`\"".contains(c))
        .filter(|word| !word.is_empty())
        .collect()
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

fn has_number_of_number(text: &str) -> bool {
    words(text)
        .windows(3)
        .any(|three| is_number(three[0]) && three[1] == "of" && is_number(three[2]))
}

const NOUNS: [&str; 12] = [
    "byte",
    "element",
    "block",
    "row",
    "record",
    "argument",
    "thread",
    "stream",
    "GPU",
    "place",
    "violation",
    "retry",
];

/// A count whose noun does not fit it.
fn wrong_plural(text: &str) -> Option<String> {
    let words = words(text);
    let wrong = (1..words.len()).map(|at| &words[at - 1..=at]).enumerate().find(|(at, pair)| {
        let (count, noun) = (pair[0], pair[1]);
        // `32 x 1 threads` are many.
        let is_factor = at.checked_sub(1).is_some_and(|before| words[before] == "x");
        is_number(count)
            && !is_factor
            && match count {
                "1" => NOUNS.iter().any(|singular| *noun == format!("{singular}s")),
                _ => NOUNS.contains(&noun),
            }
    });
    wrong.map(|(_, pair)| pair.join(" "))
}

fn has_call_twice(text: &str) -> bool {
    let calls: Vec<_> = words(text)
        .into_iter()
        .filter(|word| {
            word.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase))
        })
        .collect();
    calls.windows(2).any(|pair| pair[0] == pair[1])
}
