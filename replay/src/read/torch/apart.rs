//! Memory of a snapshot that is not replayed: of other devices, of the host, under keys that are not known.

use super::super::pickle::{Id, Pickle, Value};
use super::place::Dict;
use crate::warning::Tally;
use std::collections::HashSet;

/// What a value tells of memory.
#[derive(Default)]
pub(super) struct Found {
    /// Records, which have an action, and objects, which may.
    pub(super) records: u64,
    /// Those of them that allocate.
    pub(super) allocated: Tally,
    /// Blocks and segments in use, and whatever else has a size.
    pub(super) live: Tally,
}

/// Looks through values of any form, each of them once: what is shared is no more than it is in the file.
pub(super) struct Walk<'p, 'a> {
    pickle: &'p Pickle<'a>,
    seen: HashSet<Id>,
}

impl<'p, 'a> Walk<'p, 'a> {
    pub(super) fn new(pickle: &'p Pickle<'a>) -> Self {
        Self { pickle, seen: HashSet::new() }
    }

    pub(super) fn found(&mut self, root: Id) -> Found {
        let mut found = Found::default();
        let mut left = vec![root];
        while let Some(id) = left.pop() {
            match self.pickle.get(id) {
                Value::List(items) | Value::Tuple(items) if self.seen.insert(id) => {
                    left.extend(items);
                }
                Value::Dict(dict) if self.seen.insert(id) => match self.own(dict) {
                    Own::Record { allocated } => {
                        found.records += 1;
                        if let Some(bytes) = allocated {
                            found.allocated.add(bytes);
                        }
                    }
                    Own::Live(bytes) => found.live.add(bytes),
                    Own::Free => {}
                    Own::Blocks(blocks) => left.push(blocks),
                    Own::Other => left.extend(dict.iter().map(|(_, value)| *value)),
                },
                // What only code would make has no values here.
                Value::Object | Value::Set => found.records += 1,
                _ => {}
            }
        }
        found
    }

    /// What a dict is by its keys.
    fn own(&self, dict: &Dict) -> Own {
        let number = |key| match self.pickle.look_up(dict, key) {
            Some(Value::Int(number)) => u64::try_from(*number).ok(),
            _ => None,
        };
        let text = |key| match self.pickle.look_up(dict, key) {
            Some(Value::String(text)) => Some(*text),
            _ => None,
        };
        if let Some(action) = text("action") {
            let allocated = (action == "alloc").then(|| number("size").unwrap_or(0));
            return Own::Record { allocated };
        }
        let asked = number("requested_size").filter(|size| *size > 0);
        match (text("state"), self.pickle.id(dict, "blocks")) {
            (Some("inactive"), _) => Own::Free,
            (Some(_), _) => Own::Live(asked.or(number("size")).unwrap_or(0)),
            (None, Some(blocks)) => Own::Blocks(blocks),
            (None, None) => ["active_size", "allocated_size", "total_size", "size"]
                .into_iter()
                .find_map(number)
                .map_or(Own::Other, |size| if size > 0 { Own::Live(size) } else { Own::Free }),
        }
    }
}

enum Own {
    /// A record of a history, and what it allocates.
    Record { allocated: Option<u64> },
    /// A block or a segment in use.
    Live(u64),
    /// A block or a segment that is free.
    Free,
    /// A segment, which has blocks.
    Blocks(Id),
    /// None of these: what it holds may be.
    Other,
}
