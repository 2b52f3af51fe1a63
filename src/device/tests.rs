use super::*;

#[test]
fn the_environment_chooses_or_is_refused() {
    let (device, missing) = Device::choose(Some("sim")).unwrap();
    assert_eq!(device.kind(), BackendKind::Simulated);
    assert!(missing.is_none());
    for wrong in ["", "CUDA", "gpu"] {
        let error = Device::choose(Some(wrong)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Environment);
        assert!(error.to_string().contains("AQUIFER_BACKEND"));
    }
}
