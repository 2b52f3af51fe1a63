//! stub
use super::*;
use crate::sync::Arc;
/// x
#[derive(Clone, Debug, Default)]
pub struct SimConfig;
/// x
#[derive(Clone, Debug)]
pub struct Simulator;
impl Simulator {
    pub(crate) fn begin_capture(&self, _s: RawStream) {}
    pub(crate) fn end_capture(&self, _s: RawStream) -> CaptureStatus {
        CaptureStatus::None
    }
}
#[derive(Debug)]
pub(crate) struct SimDriver(Arc<dyn Driver>);
impl SimDriver {
    pub(crate) fn open(_c: SimConfig) -> Arc<dyn Driver> {
        loop {}
    }
    pub(crate) fn simulator(&self) -> Simulator {
        Simulator
    }
}
