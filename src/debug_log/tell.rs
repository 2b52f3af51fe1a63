//! How an event is told: never under a lock of a pool, never from within another, and whatever the
//! subscriber does.

use crate::sync::trusted::thread_local;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// The target of what pools tell.
pub(crate) const POOL: &str = "aquifer::pool";

/// What is compiled in: 0 nothing, 1 errors, to 5 for all. The least of the features that are on.
pub(crate) const LEVEL: u8 = least([
    cfg!(feature = "log-level-off"),
    cfg!(feature = "log-level-error"),
    cfg!(feature = "log-level-warn"),
    cfg!(feature = "log-level-info"),
    cfg!(feature = "log-level-debug"),
]);

const fn least(on: [bool; 5]) -> u8 {
    let mut level = 0;
    while level < 5 && !on[level as usize] {
        level += 1;
    }
    level
}

/// `event!(warn, fields, "message")`: as the macro of `tracing` with that name, where it is compiled
/// in. Told at once.
macro_rules! event {
    (error, $($rest:tt)*) => { crate::debug_log::event!(1, error, $($rest)*) };
    (warn, $($rest:tt)*) => { crate::debug_log::event!(2, warn, $($rest)*) };
    (debug, $($rest:tt)*) => { crate::debug_log::event!(4, debug, $($rest)*) };
    (trace, $($rest:tt)*) => { crate::debug_log::event!(5, trace, $($rest)*) };
    ($level:literal, $name:ident, $($rest:tt)*) => {
        if crate::debug_log::LEVEL >= $level {
            crate::debug_log::tell(|| ::tracing::$name!($($rest)*));
        }
    };
}
pub(crate) use event;

thread_local! {
    static HERE: Here = const {
        Here {
            telling: Cell::new(false),
            held: Cell::new(0),
            wanted: Cell::new(false),
            late: RefCell::new(ManuallyDrop::new(Vec::new())),
        }
    };
}

type Late = Box<dyn FnOnce()>;

/// Without a destructor: a thread that ends tells from its other thread locals' destructors, under
/// locks and inside of tellings as anywhere.
struct Here {
    /// A subscriber runs on this thread.
    telling: Cell<bool>,
    /// How many guards of [`hold`] there are.
    held: Cell<usize>,
    /// Whether anybody listened when the first of them was made.
    wanted: Cell<bool>,
    /// Empty and without memory where nothing is held.
    late: RefCell<ManuallyDrop<Vec<Late>>>,
}

const _: () = assert!(!std::mem::needs_drop::<Here>());

/// Calls the subscriber, and stops its panics: its caller may have a block in hand, be a destructor,
/// or be unwinding already. What is told inside of a subscriber is not.
pub(crate) fn tell(event: impl FnOnce()) {
    // Where the system has no plain thread locals, a thread that ends tells without this one.
    if HERE.try_with(|here| here.telling.replace(true)).unwrap_or(false) {
        return;
    }
    let told = catch_unwind(AssertUnwindSafe(event));
    let _ = HERE.try_with(|here| here.telling.set(false));
    if let Err(thrown) = told {
        // Its destructor may panic, too.
        std::mem::forget(thrown);
    }
}

/// Whether anybody listens to what pools tell at `DEBUG`. Inside of [`hold`], as of its begin: a
/// subscriber is not asked under a lock.
pub(crate) fn is_wanted() -> bool {
    LEVEL >= 4
        && HERE
            .try_with(|here| if here.held.get() > 0 { here.wanted.get() } else { ask() })
            .unwrap_or(false)
}

/// Whether this thread may have locks of a pool, so that nobody is to be asked.
pub(crate) fn is_held() -> bool {
    HERE.try_with(|here| here.held.get() > 0).unwrap_or(false)
}

fn ask() -> bool {
    let mut wanted = false;
    // A look at a number first, which is all where nobody listens.
    if Level::DEBUG <= LevelFilter::current() {
        tell(|| wanted = tracing::enabled!(target: POOL, Level::DEBUG));
    }
    wanted
}

/// Has what is an [`event!`] of owned things told when the last guard of [`hold`] on this thread is
/// gone; at once, where there is none.
pub(crate) fn later(event: impl FnOnce() + 'static) {
    let mut event = Some(event);
    let _ = HERE.try_with(|here| {
        if here.held.get() > 0
            && let Some(event) = event.take()
        {
            here.late.borrow_mut().push(Box::new(event));
        }
    });
    if let Some(event) = event {
        event();
    }
}

/// While it lives, what this thread tells by [`later`] waits. Made before the locks are taken.
pub(crate) struct Held(());

pub(crate) fn hold() -> Held {
    if LEVEL > 0 {
        let _ = HERE.try_with(|here| {
            if here.held.get() == 0 {
                here.wanted.set(LEVEL >= 4 && ask());
            }
            here.held.set(here.held.get() + 1);
        });
    }
    Held(())
}

impl Drop for Held {
    fn drop(&mut self) {
        if LEVEL == 0 {
            return;
        }
        let late = HERE.try_with(|here| {
            here.held.set(here.held.get().saturating_sub(1));
            match here.held.get() {
                0 => ManuallyDrop::into_inner(here.late.replace(ManuallyDrop::new(Vec::new()))),
                _ => Vec::new(),
            }
        });
        late.into_iter().flatten().for_each(|event| event());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn of_several_levels_the_least_wins() {
        assert_eq!(least([false; 5]), 5);
        assert_eq!(least([true; 5]), 0);
        assert_eq!(least([false, false, true, false, true]), 2);
        assert_eq!(least([false, false, false, false, true]), 4);
    }

    #[test]
    fn what_is_held_is_told_once_by_the_last_guard() {
        let told = Rc::new(RefCell::new(Vec::new()));
        let say = |number| {
            let told = told.clone();
            later(move || told.borrow_mut().push(number));
        };
        say(1);
        assert_eq!(*told.borrow(), [1]);
        let outer = hold();
        say(2);
        {
            let _inner = hold();
            say(3);
        }
        let seen = told.borrow().len();
        drop(outer);
        // With all events cut, nothing is held.
        assert_eq!(seen, if LEVEL > 0 { 1 } else { 3 });
        assert_eq!(*told.borrow(), [1, 2, 3]);
    }

    #[test]
    fn a_thread_that_ends_tells_as_any_other() {
        use crate::sync::trusted::channel;

        /// What the destructor of a thread local does, as one that has a vector in it.
        struct Last(channel::Sender<&'static str>);

        impl Drop for Last {
            fn drop(&mut self) {
                let held = hold();
                let late = self.0.clone();
                later(move || tell(|| late.send("late").unwrap()));
                self.0.send("under a lock").unwrap();
                drop(held);
                tell(|| tell(|| self.0.send("inside of a telling").unwrap()));
            }
        }

        thread_local! {
            static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
        }
        let (sender, told) = channel::unbounded();
        let thread = std::thread::spawn(move || {
            // Before the first event, so that it goes after whatever events need.
            LAST.with(|last| *last.borrow_mut() = Some(Last(sender)));
            later(|| tell(|| ()));
        });
        thread.join().unwrap();
        let told: Vec<_> = told.iter().collect();
        // With all events cut, nothing is held.
        let order = ["under a lock", "late"];
        assert!(
            if LEVEL > 0 { told == order } else { told == ["late", "under a lock"] },
            "{told:?}"
        );
    }

    #[test]
    fn a_panic_stops_at_the_teller_and_nothing_is_told_inside_of_a_telling() {
        let told = Cell::new(0);
        tell(|| {
            tell(|| told.set(told.get() + 1));
            std::panic::resume_unwind(Box::new("a subscriber fails"));
        });
        assert_eq!(told.get(), 0);
        tell(|| told.set(told.get() + 1));
        assert_eq!(told.get(), 1);
    }
}
