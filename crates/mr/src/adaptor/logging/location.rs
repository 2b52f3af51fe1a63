//! The lines of the program that call this crate.

use crate::adaptor::call_stack::CallStack;
use crate::adaptor::caller::Caller;
use crate::sync::trusted::Mutex;
use std::collections::HashMap;

/// Lines of the program that allocate and free, by number, so that a record stays small. Grows with
/// the number of such lines.
#[derive(Debug, Default)]
pub(super) struct Locations {
    /// Numbers by line, and lines by number less one.
    known: Mutex<(HashMap<String, u32>, Vec<String>)>,
}

impl Locations {
    /// The number of the line that called into this crate, or of its function if the build has no
    /// lines. Walks the stack and looks up its frames.
    pub(super) fn capture(&self) -> u32 {
        let Some(caller) = Caller::find(&CallStack::capture()) else { return 0 };
        let place = caller.line.unwrap_or(caller.function);
        let mut known = self.known.lock();
        let (numbers, names) = &mut *known;
        if let Some(number) = numbers.get(&place) {
            return *number;
        }
        names.push(place.clone());
        let number = u32::try_from(names.len()).unwrap_or(0);
        numbers.insert(place, number);
        number
    }

    /// The line of a number, which is empty for 0.
    pub(super) fn get(&self, number: u32) -> String {
        let index = (number as usize).wrapping_sub(1);
        self.known.lock().1.get(index).cloned().unwrap_or_default()
    }
}
