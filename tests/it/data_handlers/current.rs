//! The current handler of threads, scopes and tasks.

use super::counted;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::nep49::{
    DataAlloc, DataHandler, current_data_handler, data_handler_name, data_handler_version,
    set_data_handler, with_data_handler, with_data_handler_async,
};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Waker};

fn named(name: &str) -> DataHandler {
    counted(name).0
}

/// Asserts that all ways of asking come to `wanted`.
#[track_caller]
fn is_current(wanted: &DataHandler) {
    assert_eq!(current_data_handler(), *wanted);
    assert_eq!((data_handler_name(), data_handler_version()), (wanted.name().into(), 1));
    let vec: AllocVec<u8, _> = AllocVec::with_capacity_in(10, DataAlloc::current());
    assert_eq!(vec.allocator().handler(), wanted);
    assert_eq!(DataAlloc::default().handler(), wanted);
}

#[test]
fn setting_returns_what_was_current_and_none_resets() {
    let (one, two) = (named("one"), named("two"));
    is_current(&DataHandler::default());
    assert_eq!(set_data_handler(Some(one.clone())), DataHandler::default());
    is_current(&one);
    assert_eq!(set_data_handler(Some(two.clone())), one);
    is_current(&two);
    assert_eq!(set_data_handler(None), two);
    is_current(&DataHandler::default());
    assert_eq!(set_data_handler(None), DataHandler::default());
    // What was returned can be set again, as NumPy's tests do.
    let before = set_data_handler(Some(one.clone()));
    assert_eq!(set_data_handler(Some(before)), one);
    is_current(&DataHandler::default());
}

#[test]
fn a_new_thread_begins_with_the_default_and_threads_see_nothing_of_each_other() {
    let handlers = [named("one"), named("two")];
    let before = set_data_handler(Some(named("of the parent")));
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        for handler in &handlers {
            scope.spawn(|| {
                is_current(&DataHandler::default());
                together.wait();
                set_data_handler(Some(handler.clone()));
                together.wait();
                is_current(handler);
            });
        }
    });
    assert_eq!(data_handler_name(), "of the parent");
    set_data_handler(Some(before));
}

#[test]
fn a_thread_that_ends_drops_its_handler() {
    let (handler, calls) = counted("of a thread");
    std::thread::spawn(move || drop(set_data_handler(Some(handler)))).join().unwrap();
    assert_eq!(calls.dropped(), 1);
}

#[test]
fn scopes_nest_and_what_is_set_inside_ends_with_them() {
    let [outer, inner, set, outside] = ["outer", "inner", "set", "outside"].map(named);
    let before = set_data_handler(Some(outside.clone()));
    let returned = with_data_handler(outer.clone(), || {
        is_current(&outer);
        with_data_handler(inner.clone(), || {
            is_current(&inner);
            assert_eq!(set_data_handler(Some(set.clone())), inner);
            is_current(&set);
            assert_eq!(set_data_handler(None), set);
            is_current(&DataHandler::default());
        });
        is_current(&outer);
        "what the body returns"
    });
    assert_eq!(returned, "what the body returns");
    is_current(&outside);
    set_data_handler(Some(before));
}

#[test]
fn a_body_that_unwinds_leaves_its_scope() {
    let (one, two) = (named("one"), named("two"));
    with_data_handler(one.clone(), || {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            with_data_handler(two.clone(), || {
                set_data_handler(None);
                std::panic::resume_unwind(Box::new(()))
            })
        }));
        assert!(unwound.is_err());
        is_current(&one);
    });
    is_current(&DataHandler::default());
}

#[test]
fn a_scope_keeps_nothing_when_it_ends() {
    let (handler, calls) = counted("of a scope");
    with_data_handler(handler, || drop(set_data_handler(None)));
    assert_eq!(calls.dropped(), 1);
}

/// Is ready at the second poll.
#[derive(Default)]
struct Turn {
    taken: bool,
}

impl Future for Turn {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.taken, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

type Task<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

fn poll(task: &mut Task<'_>) -> Poll<()> {
    task.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Begins with one handler and sets another, with turns between.
fn task<'a>(first: &'a DataHandler, second: &'a DataHandler) -> Task<'a> {
    Box::pin(with_data_handler_async(first.clone(), async move {
        is_current(first);
        Turn::default().await;
        is_current(first);
        assert_eq!(set_data_handler(Some(second.clone())), *first);
        for _ in 0..2 {
            is_current(second);
            Turn::default().await;
        }
        is_current(second);
    }))
}

#[test]
fn tasks_that_take_turns_on_a_thread_see_their_own() {
    let [one, two, three, set] = ["one", "two", "three", "set"].map(named);
    let mut tasks = [task(&one, &two), task(&two, &three), task(&three, &one)];
    with_data_handler(set.clone(), || {
        for _ in 0..3 {
            for task in &mut tasks {
                assert!(poll(task).is_pending());
                is_current(&set);
            }
        }
        assert!(tasks.iter_mut().all(|task| poll(task).is_ready()));
        is_current(&set);
    });
    is_current(&DataHandler::default());
}

/// Two threads hand the same tasks to each other.
#[test]
fn tasks_take_their_handler_along_between_two_threads() {
    let handlers = [0, 1, 2, 3, 4].map(|number| named(&format!("task {number}")));
    let tasks = (0..5).map(|at| task(&handlers[at], &handlers[(at + 1) % 5]));
    let (give, take) = mpsc::channel::<Task<'_>>();
    tasks.for_each(|task| give.send(task).unwrap());
    let take = std::sync::Mutex::new(take);
    let polls = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (give, take, polls) = (give.clone(), &take, &polls);
            scope.spawn(move || {
                let own = named(&format!("thread {number}"));
                set_data_handler(Some(own.clone()));
                // Each thread takes half of the turns: 5 tasks of 4 polls.
                for _ in 0..10 {
                    let mut task = take.lock().unwrap().recv().unwrap();
                    let done = poll(&mut task).is_ready();
                    is_current(&own);
                    polls.fetch_or(done, SeqCst);
                    if !done {
                        give.send(task).unwrap();
                    }
                }
            });
        }
    });
    assert!(polls.into_inner());
    assert!(take.into_inner().unwrap().try_recv().is_err(), "all are done");
}

#[test]
fn a_child_task_inherits_what_is_current_when_it_is_wrapped() {
    let [parent, later] = ["parent", "later"].map(named);
    let mut children: Vec<Task<'_>> = Vec::new();
    let mut spawn: Task<'_> = Box::pin(with_data_handler_async(parent.clone(), async {
        children.push(Box::pin(with_data_handler_async(current_data_handler(), async {
            is_current(&parent)
        })));
        set_data_handler(Some(later.clone()));
        children.push(Box::pin(with_data_handler_async(current_data_handler(), async {
            is_current(&later);
            // A copy: the parent does not see it.
            set_data_handler(None);
        })));
        children.push(Box::pin(async { is_current(&DataHandler::default()) }));
        is_current(&later);
        Turn::default().await;
        is_current(&later);
    }));
    assert!(poll(&mut spawn).is_pending());
    assert!(poll(&mut spawn).is_ready());
    drop(spawn);
    std::thread::scope(|scope| {
        for mut child in children {
            scope.spawn(move || assert!(poll(&mut child).is_ready()));
        }
    });
}

#[test]
fn a_task_leaves_its_handler_where_it_unwinds() {
    let [one, two] = ["one", "two"].map(named);
    let mut wrapped: Task<'_> = Box::pin(with_data_handler_async(one.clone(), async {
        set_data_handler(Some(two.clone()));
        Turn::default().await;
        is_current(&two);
        std::panic::resume_unwind(Box::new(()))
    }));
    assert!(poll(&mut wrapped).is_pending());
    is_current(&DataHandler::default());
    assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut wrapped))).is_err());
    is_current(&DataHandler::default());
}

/// Asks for the current handler when its thread's locals go.
struct AtTheEnd(Option<Arc<AtomicBool>>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        let Some(seen) = self.0.take() else { return };
        let handler = counted("at the end").0;
        let inside = with_data_handler(handler.clone(), current_data_handler);
        let set = set_data_handler(Some(handler.clone()));
        let vec: AllocVec<u8, _> = AllocVec::with_capacity_in(100, DataAlloc::current());
        drop((set, vec));
        seen.store(inside == handler, SeqCst);
    }
}

thread_local! {
    static FIRST: std::cell::RefCell<AtTheEnd> = const { std::cell::RefCell::new(AtTheEnd(None)) };
    static LAST: std::cell::RefCell<AtTheEnd> = const { std::cell::RefCell::new(AtTheEnd(None)) };
}

#[test]
fn a_thread_that_ends_can_still_ask_and_set() {
    let seen = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let [first, last] = seen.clone();
    std::thread::spawn(move || {
        FIRST.with_borrow_mut(|end| end.0 = Some(first));
        set_data_handler(Some(named("set between")));
        LAST.with_borrow_mut(|end| end.0 = Some(last));
    })
    .join()
    .unwrap();
    assert!(seen.iter().all(|seen| seen.load(SeqCst)));
}
