//! RMM's `adaptor_tests`: what handles on an adaptor are to each other, and what it stands on.

use crate::blocks::{free, layout};
use crate::{KIB, support};
use aquifer::{
    CudaResource, DeviceResource, PoolResource, Result,
    mr::{
        AlignedAdaptor, CheckedAdaptor, FailureCallbackAdaptor, LimitingAdaptor, LoggingAdaptor,
        PrefetchAdaptor, StatisticsAdaptor, TracedAdaptor, TrackingAdaptor,
    },
};
use std::fmt::Debug;

type Pool = PoolResource<CudaResource>;

/// `make` makes adaptors over a pool.
fn adaptor<A: DeviceResource + Clone + PartialEq + Debug>(
    make: impl Fn(Pool) -> Result<A>,
    upstream: impl Fn(&A) -> &Pool,
) {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = Pool::new(CudaResource::new(&device)).unwrap();
    let (one, other) = (make(pool.clone()).unwrap(), make(pool.clone()).unwrap());
    let copy = one.clone();
    assert_eq!(*upstream(&one), pool);
    assert_eq!((&copy, copy.identity()), (&one, one.identity()));
    assert!(one != other && one.identity() != other.identity(), "{one:?} and {other:?}");
    assert_ne!(one.identity(), pool.identity(), "what it counts would be lost: {one:?}");
    assert_eq!(one.device(), &*device);
    // The original is gone when its copy frees.
    let block = one.allocate(&stream, layout(KIB)).unwrap();
    assert_eq!(pool.statistics().live_blocks, 1);
    drop(one);
    free(&copy, &stream, block);
    assert_eq!(pool.statistics().live_blocks, 0);
}

#[test]
fn copies_of_an_adaptor_are_one_and_others_are_not() {
    adaptor(|pool| AlignedAdaptor::new(pool, 512, 0), AlignedAdaptor::upstream);
    adaptor(|pool| Ok(LimitingAdaptor::new(pool, 1 << 20)), LimitingAdaptor::upstream);
    adaptor(|pool| Ok(StatisticsAdaptor::new(pool)), StatisticsAdaptor::upstream);
    adaptor(|pool| Ok(TrackingAdaptor::new(pool)), TrackingAdaptor::upstream);
    adaptor(
        |pool| LoggingAdaptor::builder(pool).writer(Box::new(std::io::sink())).build(),
        LoggingAdaptor::upstream,
    );
    adaptor(
        |pool| Ok(FailureCallbackAdaptor::new(pool, |_| false)),
        FailureCallbackAdaptor::upstream,
    );
    adaptor(|pool| Ok(PrefetchAdaptor::new(pool)), PrefetchAdaptor::upstream);
    adaptor(|pool| Ok(CheckedAdaptor::new(pool)), CheckedAdaptor::upstream);
    adaptor(|pool| Ok(TracedAdaptor::new(pool)), TracedAdaptor::upstream);
}
