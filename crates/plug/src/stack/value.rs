//! Values of options.

use super::error::{nearest, shown};
use super::names::ValueKind;
use std::borrow::Cow;
use std::fmt;

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Size(usize),
    /// A part of the device's memory.
    Part(Part),
    Number(usize),
    Switch(bool),
    Name(&'static str),
    Fill(Option<u8>),
    Path(String),
}

/// A part of the device's memory, in [`WHOLE`]ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part(u64);

/// All of the device's memory, which is 100 % with six digits after the point.
const WHOLE: u64 = 100_000_000;

const PART_DIGITS: u32 = 6;

impl Part {
    /// The part of `total` bytes, rounded down to a multiple of `alignment`, a power of two.
    pub(super) fn of(self, total: u64, alignment: usize) -> usize {
        let bytes = u128::from(total) * u128::from(self.0) / u128::from(WHOLE);
        usize::try_from(bytes).unwrap_or(usize::MAX) & !(alignment - 1)
    }
}

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

const SIZE_ADVICE: &str =
    "write bytes, as 4096, or a number with a unit, as 512MiB or 1.5GiB, without sign or exponent";
const MEMORY_ADVICE: &str = "write bytes, as 4096, a number with a unit, as 512MiB or 1.5GiB, or a \
                             part of the device's memory, as 80%, without sign or exponent";

/// The problem of a value, and the advice about it.
pub(super) type WrongValue = (String, Cow<'static, str>);

impl Value {
    /// Reads the value of an option.
    pub(super) fn read(kind: ValueKind, word: &str) -> Result<Self, WrongValue> {
        match kind {
            ValueKind::Size => read_size(word, SIZE_ADVICE).map(Self::Size),
            ValueKind::Memory => match word.strip_suffix('%') {
                Some(part) => read_part(word, part).map(Self::Part),
                None => read_size(word, MEMORY_ADVICE).map(Self::Size),
            },
            ValueKind::Number => read_number(word).map(Self::Number),
            ValueKind::Switch => match word {
                "true" | "on" => Ok(Self::Switch(true)),
                "false" | "off" => Ok(Self::Switch(false)),
                _ => Err((format!("{} is no switch", shown(word)), "write true or false".into())),
            },
            ValueKind::Name(names) => match names.iter().find(|name| **name == word) {
                Some(name) => Ok(Self::Name(name)),
                None => Err((
                    format!("{} is none of this option's values", shown(word)),
                    format!("write {}", list(names.iter().copied(), "or")).into(),
                )),
            },
            ValueKind::Fill => read_fill(word).map(Self::Fill),
            ValueKind::Path => Ok(Self::Path(word.into())),
        }
    }
}

/// Digits, with a point among them or without, and what follows. `None` if there is no digit first.
fn split_number(word: &str) -> Option<(&str, &str, &str)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = word.split_at(digits(word));
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after) => match digits(after) {
            0 => return None,
            length => after.split_at(length),
        },
        None => ("", rest),
    };
    (!whole.is_empty()).then_some((whole, fraction.trim_end_matches('0'), rest))
}

/// The number of all digits in a row, and how many of them come after the point. `None` if there are more
/// than a number holds.
fn scaled(whole: &str, fraction: &str) -> Option<(u128, u32)> {
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let number = if digits.is_empty() { Ok(0) } else { digits.parse() };
    Some((number.ok()?, u32::try_from(fraction.len()).ok()?))
}

fn read_size(word: &str, advice: &'static str) -> Result<usize, WrongValue> {
    let Some((whole, fraction, unit)) = split_number(word) else {
        return Err((format!("{} is no size", shown(word)), advice.into()));
    };
    let factor = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, factor)) => *factor,
        None if unit.is_empty() => 1,
        None => return Err(wrong_unit(word, unit, advice)),
    };
    let too_large =
        || (format!("{} is more than an address space holds", shown(word)), "ask for less".into());
    // With 20 digits before the point it is too large in any unit.
    if whole.trim_start_matches('0').len() > 20 {
        return Err(too_large());
    }
    let bytes = scaled(whole, fraction).and_then(|(number, decimals)| {
        let bytes = number.checked_mul(u128::from(factor))?;
        let divisor = 10_u128.checked_pow(decimals)?;
        bytes.is_multiple_of(divisor).then(|| bytes / divisor)
    });
    match bytes {
        Some(bytes) => usize::try_from(bytes).map_err(|_| too_large()),
        None => Err((
            format!("{} is no whole number of bytes", shown(word)),
            "write it in a smaller unit, or in bytes".into(),
        )),
    }
}

fn wrong_unit(word: &str, unit: &str, advice: &'static str) -> WrongValue {
    if unit.starts_with('%') {
        let what = format!("{} is no size of this option", shown(word));
        return (what, advice.into());
    }
    let what = format!("{} has the unit {}, which is none", shown(word), shown(unit));
    // `1G` and `1gb` are of the unit that begins so.
    let first = |text: &str| text.bytes().next().map(|byte| byte.to_ascii_lowercase());
    let begins = |name: &str| unit.len() < 3 && name.len() == 3 && first(name) == first(unit);
    let names = || UNITS.iter().map(|(name, _)| *name);
    let near = names().find(|name| begins(name)).or_else(|| nearest(unit, names()));
    let advice = match near {
        Some(near) => format!("did you mean `{near}`? {advice}").into(),
        None => advice.into(),
    };
    (what, advice)
}

fn read_part(word: &str, part: &str) -> Result<Part, WrongValue> {
    let wrong =
        |what: &str, advice: &'static str| Err((format!("{} {what}", shown(word)), advice.into()));
    let Some((whole, fraction, "")) = split_number(part) else {
        return wrong("is no part of the device's memory", "write 0% to 100%, as 80% or 12.5%");
    };
    let Some((number, decimals)) = scaled(whole, fraction) else {
        return wrong("is more than the device's memory", "write 100% at most");
    };
    let Some(missing) = PART_DIGITS.checked_sub(decimals) else {
        return wrong("has too many digits", "write six digits after the point at most");
    };
    let number = number.checked_mul(10_u128.pow(missing)).filter(|it| *it <= u128::from(WHOLE));
    match number.and_then(|number| u64::try_from(number).ok()) {
        Some(number) => Ok(Part(number)),
        None => wrong("is more than the device's memory", "write 100% at most"),
    }
}

fn read_number(word: &str) -> Result<usize, WrongValue> {
    let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let (what, advice) = match is_number {
        true => ("is too large a number", "write a smaller one"),
        false => ("is no number", "write digits alone, as 8"),
    };
    let number = if is_number { word.parse().ok() } else { None };
    number.ok_or_else(|| (format!("{} {what}", shown(word)), advice.into()))
}

fn read_fill(word: &str) -> Result<Option<u8>, WrongValue> {
    if word == "off" {
        return Ok(None);
    }
    let (digits, radix) = match word.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (word, 10),
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let byte = if is_number { u8::from_str_radix(digits, radix).ok() } else { None };
    match byte {
        Some(byte) => Ok(Some(byte)),
        None => Err((format!("{} is no byte", shown(word)), "write 0 to 255, 0xdd or off".into())),
    }
}

/// The canonical text of a value, which reads as the same value.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(bytes) => {
                let binary = UNITS[1..5].iter().rev();
                let unit = binary
                    .copied()
                    .find(|(_, factor)| *bytes > 0 && (*bytes as u64).is_multiple_of(*factor));
                match unit {
                    Some((unit, factor)) => write!(f, "{}{unit}", *bytes as u64 / factor),
                    None => write!(f, "{bytes}"),
                }
            }
            Self::Part(Part(number)) => {
                let one = WHOLE / 100;
                write!(f, "{}", number / one)?;
                if number % one > 0 {
                    let digits = format!("{:06}", number % one);
                    write!(f, ".{}", digits.trim_end_matches('0'))?;
                }
                f.write_str("%")
            }
            Self::Number(number) => number.fmt(f),
            Self::Switch(on) => on.fmt(f),
            Self::Name(name) => f.write_str(name),
            Self::Fill(Some(byte)) => write!(f, "{byte:#04x}"),
            Self::Fill(None) => f.write_str("off"),
            Self::Path(path) => write_text(f, path),
        }
    }
}

/// Whether a character ends a word.
pub(super) fn ends_word(c: char) -> bool {
    c.is_whitespace() || "(),|=\"".contains(c)
}

/// Writes a text as a word, or in quotes where it is none.
fn write_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    if !text.is_empty() && !text.contains(ends_word) {
        return f.write_str(text);
    }
    f.write_str("\"")?;
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            f.write_str("\\")?;
        }
        write!(f, "{c}")?;
    }
    f.write_str("\"")
}

/// `` `a`, `b` or `c` ``.
pub(super) fn list<'a>(names: impl Iterator<Item = &'a str>, join: &str) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} {join} {last}", rest.join(", ")),
        None => String::new(),
    }
}
