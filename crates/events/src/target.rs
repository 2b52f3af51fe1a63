//! Targets of events that name none: the module, in the names that a program knows.

/// The target of the module that expands it: `aquifer::core::stream` in `aquifer_core::stream`. All targets begin with
/// `aquifer::`, by which subscribers choose them.
#[macro_export]
#[doc(hidden)]
macro_rules! module_target {
    () => {{
        const PATH: &str = module_path!();
        const BYTES: [u8; $crate::target_length(PATH)] = $crate::target_bytes(PATH);
        const TARGET: &str = $crate::target_text(PATH, &BYTES);
        TARGET
    }};
}

/// What the crates' names begin with.
const PREFIX: &[u8] = b"aquifer_";

const fn is_ours(path: &[u8]) -> bool {
    let mut at = 0;
    while at < PREFIX.len() {
        if at >= path.len() || path[at] != PREFIX[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// Bytes of the target of a module.
pub const fn target_length(path: &str) -> usize {
    path.len() + if is_ours(path.as_bytes()) { 1 } else { 0 }
}

/// The target of a module, in so many bytes as [`target_length`] says.
pub const fn target_bytes<const N: usize>(path: &str) -> [u8; N] {
    let (path, mut target) = (path.as_bytes(), [b':'; N]);
    // One colon more than the underscore that it stands for.
    let shift = N - path.len();
    let mut at = 0;
    while at < path.len() {
        if at + 1 < PREFIX.len() {
            target[at] = path[at];
        } else if shift == 0 || at >= PREFIX.len() {
            target[at + shift] = path[at];
        }
        at += 1;
    }
    target
}

/// The bytes as a text.
pub const fn target_text(path: &'static str, target: &'static [u8]) -> &'static str {
    match std::str::from_utf8(target) {
        Ok(target) => target,
        Err(_) => path,
    }
}

#[cfg(test)]
mod tests {
    use super::{target_bytes, target_length};

    fn target<const N: usize>(path: &str) -> String {
        assert_eq!(target_length(path), N);
        String::from_utf8(target_bytes::<N>(path).to_vec()).unwrap()
    }

    #[test]
    fn the_crate_is_a_part_of_aquifer() {
        assert_eq!(target::<21>("aquifer_core::stream"), "aquifer::core::stream");
        assert_eq!(target::<13>("aquifer_pool"), "aquifer::pool");
        assert_eq!(target::<9>("aquifer_"), "aquifer::");
        assert_eq!(target::<18>("aquifer::debug_log"), "aquifer::debug_log");
        assert_eq!(target::<4>("aqua"), "aqua");
        assert_eq!(module_target!(), "aquifer::events::target::tests");
    }
}
