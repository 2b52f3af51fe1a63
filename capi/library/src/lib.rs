//! `libaquifer`: what `aquifer-capi` exports, as a library of C.

extern crate aquifer_capi as _;
