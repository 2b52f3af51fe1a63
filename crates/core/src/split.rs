//! Chunks of one memory with an owner each: what splitting and joining them share, of vectors and of host buffers.

use crate::error::{Error, ErrorKind, Refused, Result};
use crate::impls::Count;

/// How many chunks of `length` elements stand before the last one, and an empty list with room for all. `one` names what
/// is split, and `whole` the memory, in errors.
pub(crate) fn list_for<C>(
    one: &str,
    whole: &str,
    elements: usize,
    length: usize,
) -> Result<(usize, Vec<C>)> {
    let Some(before_last) = elements.saturating_sub(1).checked_div(length) else {
        let elements = Count(elements, "element");
        let what = format!("{one} of {elements} was to be split into chunks of none");
        return Err(Error::new(ErrorKind::InvalidArgument, what).with_advice("give 1 at least"));
    };
    let mut list = Vec::new();
    if list.try_reserve_exact(before_last + 1).is_err() {
        let parts = Count(before_last + 1, "part");
        let what = format!("a list of {parts} of {whole} was asked of the host");
        return Err(Error::new(ErrorKind::OutOfMemory, what).with_advice("ask for larger parts"));
    }
    Ok((before_last, list))
}

/// Joins chunks of `whole` in the order of their places. On an error all that was not joined comes back.
pub(crate) fn join_all<C, P: Ord>(
    whole: &str,
    chunks: impl IntoIterator<Item = C>,
    place: impl Fn(&C) -> P,
    unsplit: impl Fn(&mut C, C) -> Result<(), Refused<C>>,
) -> Result<C, Refused<Vec<C>>> {
    let mut chunks: Vec<C> = chunks.into_iter().collect();
    chunks.sort_by_key(place);
    let mut chunks = chunks.into_iter();
    let Some(mut joined) = chunks.next() else {
        let what = format!("no chunk of {whole} was given to be joined");
        let error = Error::new(ErrorKind::InvalidArgument, what).with_advice("give one at least");
        return Err(Refused::new(error, Vec::new()));
    };
    while let Some(next) = chunks.next() {
        if let Err(Refused { error, value }) = unsplit(&mut joined, next) {
            return Err(Refused::new(error, [joined, value].into_iter().chain(chunks).collect()));
        }
    }
    Ok(joined)
}
