//! Values of a snapshot, and where they are.

use super::super::ReadError;
use super::super::pickle::{Id, Pickle, Value};
use std::path::Path;

/// The entries of a dict: keys and values.
pub(super) type Dict = [(Id, Id)];

/// A value's place in a snapshot, for errors.
#[derive(Clone)]
pub(super) struct Place<'a> {
    pub(super) path: &'a Path,
    /// The record that it is of, from 1.
    pub(super) record: Option<usize>,
    pub(super) name: String,
}

impl Place<'_> {
    pub(super) fn at(&self, key: &str) -> Self {
        Place { path: self.path, record: self.record, name: format!("{}{key}", self.name) }
    }

    pub(super) fn list<'v>(
        &self,
        value: &'v Value,
        expected: &'static str,
    ) -> Result<&'v [Id], ReadError> {
        match value {
            Value::List(list) | Value::Tuple(list) => Ok(list),
            found => Err(self.unexpected(expected, Some(found))),
        }
    }

    pub(super) fn dict<'v>(
        &self,
        value: &'v Value,
        expected: &'static str,
    ) -> Result<&'v Dict, ReadError> {
        match value {
            Value::Dict(dict) => Ok(dict),
            found => Err(self.unexpected(expected, Some(found))),
        }
    }

    /// A number that a dict has under a key.
    pub(super) fn number(
        &self,
        pickle: &Pickle<'_>,
        dict: &Dict,
        key: &str,
        expected: &'static str,
    ) -> Result<u64, ReadError> {
        match pickle.look_up(dict, key) {
            Some(Value::Int(number)) => u64::try_from(*number)
                .map_err(|_| self.at(&format!("['{key}']")).wrong(expected, &number.to_string())),
            found => Err(self.at(&format!("['{key}']")).unexpected(expected, found)),
        }
    }

    /// As [`number`](Self::number), where the key may be absent.
    pub(super) fn optional(
        &self,
        pickle: &Pickle<'_>,
        dict: &Dict,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<u64>, ReadError> {
        match pickle.look_up(dict, key) {
            None => Ok(None),
            Some(_) => self.number(pickle, dict, key, expected).map(Some),
        }
    }

    /// A string that a dict has under a key.
    pub(super) fn string<'v>(
        &self,
        pickle: &Pickle<'v>,
        dict: &Dict,
        key: &str,
    ) -> Result<&'v str, ReadError> {
        match pickle.look_up(dict, key) {
            Some(Value::String(text)) => Ok(text),
            found => Err(self.at(&format!("['{key}']")).unexpected("a string", found)),
        }
    }

    pub(super) fn unexpected(&self, expected: &'static str, found: Option<&Value>) -> ReadError {
        let found = match found {
            None => "nothing",
            Some(Value::None) => "None",
            Some(Value::Bool(_)) => "a bool",
            Some(Value::Int(_)) => "an int",
            Some(Value::LongInt) => "an int that no address has",
            Some(Value::Float) => "a float",
            Some(Value::Bytes) => "bytes",
            Some(Value::String(_)) => "a string",
            Some(Value::List(_)) => "a list",
            Some(Value::Tuple(_)) => "a tuple",
            Some(Value::Set) => "a set",
            Some(Value::Dict(_)) => "a dict",
            Some(Value::Object) => "an object, which is not made here",
        };
        self.wrong(expected, found)
    }

    pub(super) fn wrong(&self, expected: &'static str, found: &str) -> ReadError {
        ReadError::Record {
            path: self.path.to_owned(),
            place: match self.record {
                Some(record) => format!("record {record} ({})", self.name),
                None => self.name.clone(),
            },
            expected,
            found: found.to_owned(),
        }
    }
}
