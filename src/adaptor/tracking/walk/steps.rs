//! From frame to frame by what is remembered of each place.

use super::Addresses;
use super::rules::{self, Changes, Rule};
use std::arch::asm;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Places that a thread remembers are in so many sets, by a part of the address.
const SETS: usize = 64;

/// Places of one set: those of one stack are remembered together.
const WAYS: usize = 8;

pub(super) struct Steps {
    /// The thread's stack, as the system says. Empty if it does not.
    stack: Range<usize>,
    /// What was loaded when the rules were read.
    changes: Changes,
    rules: [Set; SETS],
    /// Where the next rule of any set goes.
    next: usize,
}

/// Searched by the places alone, side by side.
#[derive(Clone, Copy)]
struct Set {
    places: [usize; WAYS],
    rules: [Rule; WAYS],
}

/// No code is at place 0.
const EMPTY: Set = Set { places: [0; WAYS], rules: [Rule::Unknown; WAYS] };

impl Steps {
    pub(super) fn new() -> Self {
        let stack = stack().unwrap_or(0..0);
        Self { stack, changes: Changes::default(), rules: [EMPTY; SETS], next: 0 }
    }

    /// Notes all return addresses, or the innermost that there is room for. `None` if it came to a
    /// frame that it does not know how to leave.
    #[inline(never)]
    pub(super) fn walk(&mut self, addresses: &mut Addresses) -> Option<()> {
        let changes = rules::changes();
        if changes != self.changes {
            // A place may be another library's now.
            self.rules.fill(EMPTY);
            self.changes = changes;
        }
        let (mut place, mut top, mut base): (usize, usize, usize);
        // SAFETY: reads three registers; the place is the one where they are read.
        unsafe {
            asm!(
                "lea {}, [rip]", "mov {}, rsp", "mov {}, rbp",
                out(reg) place, out(reg) top, out(reg) base,
                options(nomem, nostack, preserves_flags)
            );
        }
        // Below lies nothing of any frame. Elsewhere than on the thread's own stack, that of a
        // coroutine for instance, we know no end of it.
        let readable = self.stack.contains(&top).then_some(top..self.stack.end)?;
        loop {
            let (by_base, above, saved) = match self.rule(place) {
                Rule::Step { by_base, above, saved } => (by_base, above, saved),
                Rule::End => return Some(()),
                Rule::Unknown => return None,
            };
            // The frame's upper end. The return address is just below it.
            let end = if by_base { base } else { top }.wrapping_add(above as usize);
            if end <= top {
                return None;
            }
            if saved != 0 {
                base = read(&readable, end.wrapping_sub(saved as usize))?;
            }
            // Of a call, which is the instruction before: it may be a function's last.
            place = read(&readable, end.wrapping_sub(8))?.wrapping_sub(1);
            top = end;
            if place == usize::MAX || !addresses.push(place + 1) {
                return Some(());
            }
        }
    }

    #[inline(always)]
    fn rule(&mut self, place: usize) -> Rule {
        let Set { places, rules } = &self.rules[set_of(place)];
        match places.iter().position(|known| *known == place) {
            Some(way) => rules[way],
            None => self.learn(place),
        }
    }

    #[cold]
    #[inline(never)]
    fn learn(&mut self, place: usize) -> Rule {
        let rule = rules::read(place);
        let (set, way) = (&mut self.rules[set_of(place)], self.next % WAYS);
        (set.places[way], set.rules[way]) = (place, rule);
        self.next = self.next.wrapping_add(1);
        rule
    }
}

#[inline(always)]
fn set_of(place: usize) -> usize {
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % SETS
}

/// A word of the stack.
#[inline(always)]
fn read(readable: &Range<usize>, address: usize) -> Option<usize> {
    let inside = address >= readable.start && address < readable.end.saturating_sub(7);
    if !inside || !address.is_multiple_of(8) {
        return None;
    }
    // SAFETY: on the calling thread's own stack, between its present top and its end, which are mapped
    // as long as it runs; whoever wrote the word is further out and waits.
    Some(unsafe { (address as *const usize).read_volatile() })
}

/// The calling thread's stack.
fn stack() -> Option<Range<usize>> {
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: the first call fills the attributes, or fails.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut start, mut length) = (std::ptr::null_mut(), 0);
    // SAFETY: filled above, read and then ended here, once.
    let code = unsafe {
        let code = libc::pthread_attr_getstack(attributes.as_ptr(), &mut start, &mut length);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        code
    };
    let start = start as usize;
    (code == 0).then_some(start..start.checked_add(length)?)
}

#[cfg(test)]
mod tests {
    use super::super::{MOST, Walker};
    use super::*;

    fn fresh() -> Addresses {
        Addresses { found: [0; MOST], count: 0 }
    }

    /// What the unwinder says of the same stack, without the frames of its own.
    fn compare(steps: &mut Steps) -> usize {
        let (mut ours, mut theirs) = (fresh(), fresh());
        assert_eq!(steps.walk(&mut ours), Some(()), "left to the unwinder");
        backtrace::trace(|frame| !frame.ip().is_null() && theirs.push(frame.ip() as usize));
        let ours = &ours.found[..ours.count];
        let theirs = &theirs.found[..theirs.count];
        // The first is here, where two different lines call.
        let outer = &ours[1..];
        if theirs.len() < MOST && ours.len() < MOST {
            assert!(theirs.ends_with(outer), "{ours:x?} {theirs:x?}");
            assert!(theirs.len() - outer.len() < 8, "frames are missing: {ours:x?} {theirs:x?}");
        } else {
            let both = |first: &usize| theirs.iter().position(|address| address == first);
            let at = outer.first().and_then(both).unwrap_or(theirs.len());
            let same = &theirs[at..];
            assert!(same.len() > MOST - 10 && outer.starts_with(same), "{ours:x?} {theirs:x?}");
        }
        ours.len()
    }

    /// A frame whose size is not known when it is compiled, in effect: aligned more than the stack is.
    #[inline(never)]
    fn aligned(steps: &mut Steps, depth: usize) -> usize {
        #[repr(align(64))]
        struct Wide([u8; 64]);
        let wide = std::hint::black_box(Wide([depth as u8; 64]));
        let found = if depth == 0 { compare(steps) } else { plain(steps, depth - 1) };
        assert_eq!(std::hint::black_box(&wide).0[depth % 64], depth as u8);
        found
    }

    #[inline(never)]
    fn plain(steps: &mut Steps, depth: usize) -> usize {
        let pad = std::hint::black_box([depth; 5]);
        let found = if depth == 0 { compare(steps) } else { aligned(steps, depth - 1) };
        found + usize::from(std::hint::black_box(pad)[1] != depth)
    }

    #[test]
    fn it_finds_what_the_unwinder_finds() {
        let mut steps = Steps::new();
        let mut last = 0;
        for depth in (0..20).chain([200]).chain((0..20).rev()) {
            let found = plain(&mut steps, depth);
            assert!(found > depth.min(MOST - 1), "{found} frames at depth {depth}");
            assert!(found == MOST || found != last || depth == 19, "{found} frames twice");
            last = found;
            // From a closure that the standard library calls, too.
            let mut around: Vec<_> = (0..3).map(|_| 0).collect();
            around.iter_mut().for_each(|found| *found = aligned(&mut steps, depth));
            assert!(around.iter().all(|one| *one == around[0]));
        }
    }

    #[test]
    fn it_finds_the_start_of_threads() {
        std::thread::spawn(|| compare(&mut Steps::new())).join().unwrap();
    }

    #[test]
    fn a_stack_that_is_not_the_threads_is_left_to_the_unwinder() {
        let mut walker = Walker::new();
        let known = walker.walk().to_vec();
        walker.steps.stack = 0..8;
        assert_eq!(walker.steps.walk(&mut fresh()), None);
        let outermost = |addresses: &[usize]| addresses[addresses.len() - 3..].to_vec();
        assert_eq!(outermost(walker.walk()), outermost(&known));
    }

    #[test]
    fn a_place_of_no_code_is_left_to_the_unwinder() {
        let mut steps = Steps::new();
        for place in [0, 1, 4096, usize::MAX, (&raw const steps) as usize] {
            assert_eq!(steps.rule(place), Rule::Unknown, "{place:x}");
        }
    }

    #[test]
    fn what_was_loaded_meanwhile_is_read_anew() {
        let mut steps = Steps::new();
        compare(&mut steps);
        let wrong = Rule::Step { by_base: false, above: 8, saved: 0 };
        steps.rules.iter_mut().for_each(|set| set.rules = [wrong; WAYS]);
        steps.changes = Changes::default();
        compare(&mut steps);
    }
}
