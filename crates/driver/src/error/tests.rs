//! The texts and the kinds of errors.

use super::*;

#[test]
fn the_message_has_the_call_its_number_and_advice() {
    let error = Error::driver_call(
        "allocating 4096 bytes",
        DriverError::new("cuMemAlloc_v2", DriverError::OUT_OF_MEMORY),
    );
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let driver = error.driver().unwrap();
    assert_eq!((driver.call(), driver.code()), ("cuMemAlloc_v2", 2));
    assert_eq!(
        error.to_string(),
        "allocating 4096 bytes: cuMemAlloc_v2 returned 2, CUDA_ERROR_OUT_OF_MEMORY \
         (free memory, trim pools, ask for less, or use a device with more of it)"
    );
    assert!(error.source().is_some());
    let advice = "free memory, trim pools, ask for less, or use a device with more of it";
    assert_eq!(error.advice(), Some(advice));
    // What `main` and `unwrap` print.
    assert_eq!(format!("{error:?}"), format!("OutOfMemory: {error}"));
    let parts = format!("{error:#?}");
    for part in ["kind: OutOfMemory", "message: \"allocating", "code: 2", "src/error/tests.rs:7"] {
        assert!(parts.contains(part), "{part}: {parts}");
    }
}

#[test]
fn a_message_can_be_part_of_another() {
    let error = Error::new(ErrorKind::NoDriver, "no library").with_advice("install it".to_string());
    assert_eq!(
        error.within("a GPU was asked for").to_string(),
        "a GPU was asked for: no library (install it)"
    );
    assert_eq!(Error::new(ErrorKind::Io, "full").advice(), None);
}

#[test]
fn the_source_is_the_driver_call_or_what_was_named() {
    let new = || Error::new(ErrorKind::InvalidArgument, "wrong");
    assert!(new().source().is_none());
    let named = new().with_cause(std::io::Error::other("a fault in a text"));
    assert_eq!(named.clone().within("a part").source().unwrap().to_string(), "a fault in a text");
    assert_eq!(named.to_string(), "wrong");
    let driver = DriverError::new("cuMemAlloc", DriverError::OUT_OF_MEMORY);
    let both = named.with_driver(driver);
    assert!(both.source().unwrap().is::<DriverError>());
}

#[test]
fn context_loss_is_told_from_other_errors() {
    for code in [3, 4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721] {
        let error = DriverError::new("cuStreamSynchronize", code);
        assert_eq!(error.kind(), ErrorKind::ContextLost, "{error}");
    }
    for code in [1, 2, 201, 400, 500, 600, 701, 712, 713, 801, 900, 901, 907, 999] {
        let error = DriverError::new("cuStreamSynchronize", code);
        assert_ne!(error.kind(), ErrorKind::ContextLost, "{error}");
    }
}

#[test]
fn codes_without_a_name_still_print() {
    let text = DriverError::new("cuFuture", 998).to_string();
    assert_eq!(text, "cuFuture returned 998, a number without a name here, see CUresult in cuda.h");
}

#[test]
fn a_cause_is_the_source_and_the_code_says_the_kind() {
    let cause = crate::sync::Arc::new(std::io::Error::other("the kernel failed"));
    let error = DriverError::with_cause("cuMemAlloc", DriverError::LAUNCH_FAILED, cause.clone());
    assert_eq!(error.kind(), ErrorKind::ContextLost);
    assert_eq!(error.source().unwrap().to_string(), "the kernel failed");
    assert_eq!(
        error.to_string(),
        "cuMemAlloc returned 719, CUDA_ERROR_LAUNCH_FAILED, after: the kernel failed"
    );
    let own = DriverError::with_detail("cuMemAlloc", DriverError::LAUNCH_FAILED, cause);
    assert_eq!((own.kind(), own.to_string()), (ErrorKind::Simulation, "the kernel failed".into()));
}
