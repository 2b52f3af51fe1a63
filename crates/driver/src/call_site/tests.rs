//! Which line counts for calls inside of calls.

use super::*;

/// A line outside of this crate, whose own lines do not count.
fn outside() -> Site {
    let of_the_library: fn() -> &'static Location<'static> = Location::caller;
    Site(of_the_library())
}

/// Calls [`CallSite::enter`] as a call on that line does.
fn enter(line: Site) -> CallSite {
    CallSite { is_outermost: enter_at(line.location()), stays: PhantomData }
}

#[test]
fn a_line_is_current_until_its_call_returns() {
    let line = outside();
    assert!(!line.is_own(), "{line}");
    assert_eq!(Site::current(), None);
    let entered = enter(line);
    assert_eq!(Site::current(), Some(line));
    drop(entered);
    assert_eq!(Site::current(), None);
}

#[test]
fn a_call_of_the_crate_itself_changes_nothing() {
    CallSite::want();
    let own = Site(Location::caller());
    assert!(own.is_own(), "{own}");
    let entered = CallSite::enter();
    assert_eq!(Site::current(), None);
    drop(entered);
    let line = outside();
    let outer = enter(line);
    let inner = CallSite::enter();
    assert_eq!(Site::current(), Some(line));
    drop(inner);
    assert_eq!(Site::current(), Some(line));
    drop(outer);
}

#[test]
fn a_drop_of_another_call_has_no_line() {
    let line = outside();
    let _entered = enter(line);
    let left = NoCallSite::enter();
    assert_eq!(Site::current(), None);
    // What is called meanwhile may have a line of its own.
    drop(enter(line));
    assert_eq!(Site::current(), None);
    drop(left);
    assert_eq!(Site::current(), Some(line));
}

#[test]
fn each_thread_has_a_line_of_its_own() {
    let line = outside();
    let _entered = enter(line);
    assert_eq!(std::thread::spawn(Site::current).join().unwrap(), None);
}

#[test]
fn the_crates_of_aquifer_are_known_in_a_workspace_and_in_a_registry() {
    let workspace = "crates/driver";
    let registry = "/cargo/src/aquifer-driver-0.1.0";
    for (own, path, is_ours) in [
        (workspace, "crates/core/src/device.rs", true),
        (workspace, "crates/pool/src/heap/mod.rs", true),
        (workspace, "crates/cores/src/device.rs", false),
        (workspace, "tests/it/main.rs", false),
        (workspace, "examples/compose.rs", false),
        (registry, "/cargo/src/aquifer-core-0.1.0/src/device.rs", true),
        (registry, "/cargo/src/aquifer-core-0.2.0/src/device.rs", false),
        (registry, "/cargo/src/aquifer-friend-0.1.0/src/lib.rs", false),
        (registry, "src/main.rs", false),
        ("", "src/main.rs", false),
    ] {
        let own_files = OwnFiles::beside(own, "driver");
        assert_eq!(own_files.is_some_and(|own| own.contain(path)), is_ours, "{path} beside {own}");
    }
}

#[test]
fn no_crate_of_the_repository_is_left_out() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates");
    // A published crate stands alone.
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(OWN_CRATES.contains(&&*name), "{name}");
    }
}
