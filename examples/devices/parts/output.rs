//! What the programs print, and what they fail with.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};

/// The error can come from a thread.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// `println!`, but that an output which cannot be written is an error, and no panic.
pub(crate) fn say(words: impl Display) -> Outcome {
    writeln!(io::stdout(), "{words}").map_err(|error| format!("standard output: {error}").into())
}
