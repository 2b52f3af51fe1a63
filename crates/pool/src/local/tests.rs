use super::super::magazine::Limits;
use super::*;
use crate::sync::trusted::{channel, thread_local};

struct Ignored;

impl OnThreadExit for Ignored {
    fn on_thread_exit(&self, _magazine: &Arc<Magazine>) {}
}

fn found(pool: PoolId, stream: u64) -> [Option<u32>; 2] {
    // SAFETY: used at once.
    let (table, list) = unsafe { (find(pool, stream), find_in_list(pool, stream)) };
    [table.map(Magazine::slot), list.map(Magazine::slot)]
}

#[test]
fn pools_past_the_keys_of_tables_are_found_in_the_list() {
    let owner: Arc<dyn OnThreadExit> = Arc::new(Ignored);
    let numbers = [1 << 20, NO_KEY - 1, NO_KEY, NO_KEY + 1, NO_KEY + 1024];
    let mut pools = numbers.map(PoolId::of).to_vec();
    assert!(pools.iter().map(|pool| pool.number()).eq(numbers));
    pools.extend([PoolId::new_listed(), PoolId::new_listed()]);
    let streams = [0, 1, (1 << STREAM_BITS) - 2];
    let places = || pools.iter().flat_map(|pool| streams.map(|stream| (*pool, stream))).zip(1..);
    for ((pool, stream), slot) in places() {
        assert_eq!(found(pool, stream), [None, None], "{pool:?} {stream}");
        let magazine = Arc::new(Magazine::new(Limits { entries: 1, units: 1 }, slot));
        let made = find_or_make(pool, stream, || Some((magazine, Arc::downgrade(&owner))));
        assert_eq!(made.map(|it| it.slot()), Some(slot));
        let in_table = (pool.key >> STREAM_BITS != NO_KEY).then_some(slot);
        assert_eq!(found(pool, stream), [in_table, Some(slot)], "{pool:?} {stream}");
        assert_eq!(found(pool, 1024), [None, None], "{pool:?} was not used on it");
    }
    for ((pool, stream), slot) in places() {
        let [table, list] = found(pool, stream);
        assert!(table.is_none() || table == Some(slot), "{pool:?} {stream}");
        assert_eq!(list, Some(slot), "{pool:?} {stream}");
    }
    // SAFETY: used at once.
    assert!(unsafe { find(PoolId::NONE, 0) }.is_none(), "no pool has magazines");
    drop(owner);
    sweep();
    assert_eq!(found(pools[0], 0), [None, None], "their owner is gone");
}

#[test]
fn pools_that_follow_each_other_have_entries_of_their_own() {
    for (pools, streams) in [(1_u64..5, 16_u64..80), (1..3, 500..700), (7..11, 1000..1016)] {
        let keys = pools.flat_map(|pool| {
            let pool = PoolId::of(pool);
            streams.clone().map(move |stream| index(pool.key_with(stream)))
        });
        let (mut all, mut places) = (0, std::collections::BTreeSet::new());
        keys.for_each(|place| {
            all += 1;
            places.insert(place);
        });
        assert!(places.len() * 10 >= all * 8, "{} entries for {all}", places.len());
    }
}

#[test]
fn a_place_has_the_magazine_for_as_long_as_the_table_has_it() {
    std::thread::spawn(|| {
        let owner: Arc<dyn OnThreadExit> = Arc::new(Ignored);
        let (pool, stream) = (PoolId::new(), 7);
        let slot = |place: &Place| {
            // SAFETY: used at once, and the table names it.
            place.magazine().map(|magazine| unsafe { magazine.as_ref() }.slot())
        };
        assert!(Place::find(pool, stream).is_none(), "the thread has no table");
        let make = |number| {
            let magazine = Arc::new(Magazine::new(Limits { entries: 1, units: 1 }, number));
            find_or_make(pool, stream, || Some((magazine, Arc::downgrade(&owner)))).unwrap()
        };
        let first = make(1);
        let place = Place::find(pool, stream).unwrap();
        assert!(Place::find(pool, 8).is_none());
        assert!(Place::find(PoolId::new_listed(), stream).is_none());
        assert_eq!(slot(&place), Some(1));
        // SAFETY: no revoker is about.
        unsafe { first.retire() };
        sweep();
        assert_eq!(slot(&place), None, "it was retired");
        make(2);
        assert_eq!(slot(&place), Some(2), "the next one has the same place");
        disable_in_child();
        assert_eq!(slot(&place), None, "the child of a fork has none");
        assert!(Place::find(pool, stream).is_none());
    })
    .join()
    .unwrap();
}

#[test]
fn a_place_outlives_the_threads_magazines() {
    thread_local! {
        static LATER: RefCell<Option<Place>> = const { RefCell::new(None) };
    }
    struct Looks(channel::Sender<bool>);
    impl Drop for Looks {
        fn drop(&mut self) {
            let has = LATER.with(|later| later.borrow().as_ref().map(|it| it.magazine().is_some()));
            let _ = self.0.send(has.unwrap());
        }
    }
    thread_local! {
        static LOOKS: RefCell<Option<Looks>> = const { RefCell::new(None) };
    }
    let (sender, receiver) = channel::unbounded();
    std::thread::spawn(move || {
        // Destructors run in the order that is the reverse of the first uses: the list's is the first.
        LATER.with(|later| assert!(later.borrow().is_none()));
        LOOKS.with(|looks| *looks.borrow_mut() = Some(Looks(sender)));
        let owner: Arc<dyn OnThreadExit> = Arc::new(Ignored);
        let pool = PoolId::new();
        let magazine = Arc::new(Magazine::new(Limits { entries: 1, units: 1 }, 1));
        find_or_make(pool, 7, || Some((magazine, Arc::downgrade(&owner)))).unwrap();
        LATER.with(|later| *later.borrow_mut() = Place::find(pool, 7));
        LATER.with(|later| assert!(later.borrow().is_some()));
    })
    .join()
    .unwrap();
    assert!(!receiver.recv().unwrap(), "the list is gone, and the place has nothing");
}
