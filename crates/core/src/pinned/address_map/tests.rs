use super::*;
use crate::driver::{HostFlags, RawCopy};

/// The control of every test that finds no `FreeWhileInUse`. The simulated device sees a block that is unpinned under a
/// copy, and sees nothing if the block went through quarantine.
#[test]
fn unpinning_at_once_would_be_seen() {
    use crate::sim::{SimConfig, Violation};
    for at_once in [true, false] {
        let device = Device::simulated(SimConfig::default());
        let (driver, simulator) = (device.driver(), device.simulator().unwrap());
        let flags =
            HostFlags { portable: true, mapped: false, write_combined: false, read_only: false };
        let layout = Layout::new::<[u8; 4096]>();
        let source = Arc::new(HostSource::new(&device, flags));
        let block = allocate(&source, layout, None).unwrap().start;
        let stream = device.new_stream().unwrap();
        let target = driver.mem_alloc(4096).unwrap();
        let entered = stream.begin_call().unwrap();
        // SAFETY: the block is written, both are large enough, and the copy is waited for below
        // (where it is not, the simulated device keeps the memory until the copy has run).
        unsafe {
            block.write_bytes(1, 4096);
            driver
                .copy_to_device(
                    RawCopy { target, source: block.as_ptr(), bytes: 4096 },
                    entered.raw(),
                )
                .unwrap();
            if at_once {
                driver.host_free(block).unwrap();
            } else {
                free(block, layout);
                source.trim().unwrap();
            }
        }
        assert_eq!(simulator.host_blocks(), 0);
        let reports = simulator.take_reports();
        let kinds = reports.iter().map(crate::sim::Report::kind).collect::<Vec<_>>();
        assert_eq!(kinds, if at_once { vec![Violation::FreeWhileInUse] } else { vec![] });
        stream.synchronize().unwrap();
        // SAFETY: allocated above, and complete.
        unsafe { driver.mem_free(target).unwrap() };
    }
}

#[test]
fn a_remembered_slab_ends_where_the_next_one_begins() {
    let removed = SLABS_REMOVED.load(Ordering::Relaxed);
    let slab = RecentSlab { base: 0x10000, bytes: 0x1000, key: PoolKey::NONE, removed };
    let contained =
        [0xffff, 0x10000, 0x10fff, 0x11000].map(|address| still_contains(&slab, address));
    // Another test may remove a slab meanwhile.
    if SLABS_REMOVED.load(Ordering::Relaxed) == removed {
        assert_eq!(contained, [false, true, true, false]);
    }
    assert!(!still_contains(&RecentSlab { removed: removed.wrapping_sub(1), ..slab }, 0x10000));
}

#[test]
fn an_address_is_found_in_its_range_and_not_behind_it() {
    let device = Device::simulated(crate::sim::SimConfig::default());
    let flags =
        HostFlags { portable: true, mapped: false, write_combined: false, read_only: false };
    let source = Arc::new(HostSource::new(&device, flags));
    let memory = allocate(&source, Layout::new::<[u8; 4096]>(), None).unwrap();
    let (base, bytes) = (memory.base.addr().get(), memory.bytes);
    let has = |address| find(address).is_some_and(|range| range.base == base);
    let found = [base - 1, base, base + bytes - 1, base + bytes].map(has);
    assert_eq!(found, [false, true, true, false]);
    // SAFETY: the block of above, which nothing uses.
    unsafe { free(memory.start, Layout::new::<[u8; 4096]>()) };
    assert!(!has(base), "it left the map");
    source.trim().unwrap();
}
