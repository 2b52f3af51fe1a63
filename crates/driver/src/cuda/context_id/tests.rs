//! Numbers of contexts.

use super::*;

#[test]
fn a_reused_handle_is_another_context() {
    let first = ContextId::of(0xfeed);
    assert_eq!(first.number(), ContextId::of(0xfeed).number());
    assert_ne!(first.number(), ContextId::of(0xbeef).number());
    let number = first.number();
    drop(first);
    assert_ne!(number, ContextId::of(0xfeed).number());
}
