//! The events of a pool. Their names are in [`debug_log`](crate::debug_log).

/// Emits an event of the pool with these fields, which are read only if something listens.
macro_rules! emit {
    ($self:ident, { $($field:ident $(= $value:expr)?),* $(,)? }, $text:literal) => {
        if $crate::debug_log::is_enabled() {
            let (pool, device) = ($self.id(), U::device(&$self.upstream));
            $($(let $field = $value;)?)*
            $crate::debug_log::emit_deferred(move || {
                $crate::debug_log::event!(
                    debug, target: $crate::debug_log::POOL, pool, device, $($field,)* $text
                );
            });
        }
    };
}
pub(super) use emit;
