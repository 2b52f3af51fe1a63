//! The options that follow a manager's name in `AQUIFER_MEMORY_MANAGER`.

use crate::error::{Error, ErrorKind, Result};
use crate::impls::short_name;
use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

/// The options of a [registered](crate::nbep7::register_memory_manager) manager. They follow
/// its name and a colon in `AQUIFER_MEMORY_MANAGER=name:key=value,key=value`. White space
/// around keys and values does not count.
///
/// ```
/// use aquifer::nbep7::ManagerOptions;
///
/// let options: ManagerOptions = "blocks=16, policy=best".parse()?;
/// assert_eq!(options.get("policy"), Some("best"));
/// assert_eq!(options.parse::<usize>("blocks")?, Some(16));
/// assert!(options.parse::<usize>("policy").is_err());
/// assert!(options.allow(&["blocks"]).is_err(), "`policy` is not among them");
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagerOptions {
    pairs: Vec<(String, String)>,
}

fn wrong(what: String, advice: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Environment, what).with_advice(advice)
}

impl FromStr for ManagerOptions {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        if text.trim().is_empty() {
            return Ok(Self { pairs });
        }
        for part in text.split(',') {
            let pair = part.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
            let Some((key, value)) = pair.filter(|(key, _)| !key.is_empty()) else {
                let what = format!("a memory manager was given the option {:?}", part.trim());
                return Err(wrong(what, "write options as key=value, separated by commas"));
            };
            if pairs.iter().any(|(known, _)| known == key) {
                let what = format!("a memory manager was given the option {key:?} twice");
                return Err(wrong(what, "give it once"));
            }
            pairs.push((key.into(), value.into()));
        }
        Ok(Self { pairs })
    }
}

impl ManagerOptions {
    /// The value of an option, if it was given.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// The value of an option as a `T`, if it was given.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Environment`] for a value that is no `T`.
    pub fn parse<T>(&self, key: &str) -> Result<Option<T>>
    where
        T: FromStr,
        T::Err: Display,
    {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.parse().map(Some).map_err(|error: T::Err| {
            let what = format!("a memory manager was given the option {key}={value}: {error}");
            wrong(
                what,
                format!("give a value of the type {}", short_name(std::any::type_name::<T>())),
            )
        })
    }

    /// Refuses options that are not among `known`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Environment`], which names the first such option.
    pub fn allow(&self, known: &[&str]) -> Result<()> {
        match self.pairs.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) => {
                let what = format!("a memory manager has no option {key:?}");
                let advice = match known.is_empty() {
                    true => String::from("give it none"),
                    false => format!("its options are {}", known.join(", ")),
                };
                Err(wrong(what, advice))
            }
        }
    }
}
