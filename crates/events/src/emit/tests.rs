use super::*;
use aquifer_sync::trusted::thread_local;
use std::rc::Rc;

#[test]
fn the_last_guard_emits_each_deferred_event_once() {
    let emitted = Rc::new(RefCell::new(Vec::new()));
    let emit_number = |number| {
        let emitted = emitted.clone();
        emit_deferred(move || emitted.borrow_mut().push(number));
    };
    emit_number(1);
    assert_eq!(*emitted.borrow(), [1]);
    let outer = defer_events();
    emit_number(2);
    {
        let _inner = defer_events();
        emit_number(3);
    }
    let before = emitted.borrow().len();
    drop(outer);
    // With all events compiled out, nothing is deferred.
    assert_eq!(before, if LEVEL > 0 { 1 } else { 3 });
    assert_eq!(*emitted.borrow(), [1, 2, 3]);
}

#[test]
fn a_thread_that_ends_emits_as_any_other() {
    use aquifer_sync::trusted::channel;

    /// As a thread local with a vector in it.
    struct Last(channel::Sender<&'static str>);

    impl Drop for Last {
        fn drop(&mut self) {
            let guard = defer_events();
            let sender = self.0.clone();
            emit_deferred(move || emit(|| sender.send("deferred").unwrap()));
            self.0.send("under a lock").unwrap();
            drop(guard);
            emit(|| emit(|| self.0.send("inside of a subscriber").unwrap()));
        }
    }

    thread_local! {
        static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    }
    let (sender, emitted) = channel::unbounded();
    let thread = std::thread::spawn(move || {
        // Before the first event, so that it is dropped after whatever events need.
        LAST.with(|last| *last.borrow_mut() = Some(Last(sender)));
        emit_deferred(|| emit(|| ()));
    });
    thread.join().unwrap();
    let emitted: Vec<_> = emitted.iter().collect();
    // With all events compiled out, nothing is deferred.
    let order = ["under a lock", "deferred"];
    assert!(
        if LEVEL > 0 { emitted == order } else { emitted == ["deferred", "under a lock"] },
        "{emitted:?}"
    );
}

#[test]
fn a_subscriber_that_panics_is_stopped_and_its_own_events_are_not_emitted() {
    let emitted = Cell::new(0);
    emit(|| {
        emit(|| emitted.set(emitted.get() + 1));
        std::panic::resume_unwind(Box::new("a subscriber fails"));
    });
    assert_eq!(emitted.get(), 0);
    emit(|| emitted.set(emitted.get() + 1));
    assert_eq!(emitted.get(), 1);
}
