//! Arguments of host forms.

use super::*;

#[test]
fn arguments_are_checked_and_taken_in_order() {
    let mut memory = [1_u32, 2, 3];
    let list = [
        HostArg::Buffer {
            pointer: memory.as_mut_ptr().cast(),
            bytes: 12,
            access: Access::ReadWrite,
        },
        HostArg::Scalar(&[7]),
    ];
    // SAFETY: one live array, borrowed by nothing else.
    let mut args = unsafe { HostArgs::new("test", &list) };
    let data = args.in_out::<u32>().unwrap();
    assert_eq!(data, [1, 2, 3]);
    assert!(args.scalar::<u32>().is_err(), "of another size");
    assert!(args.scalar::<u8>().is_err(), "past the end");
    // SAFETY: as above.
    let mut args = unsafe { HostArgs::new("test", &list) };
    assert!(args.input::<u32>().is_err(), "declared otherwise");
}

#[test]
fn arguments_have_a_size_that_drivers_take() {
    assert!(RawArg::scalar([0_u64; 2048]).is_ok());
    assert!(RawArg::scalar([0_u64; 4096]).is_err());
    assert!(RawArg::param([0_u64; 2048]).is_ok());
    assert!(RawArg::param([0_u64; 4096]).is_err());
}

/// A structure with padding.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Padded {
    count: u32,
    scale: f64,
}

// SAFETY: two numbers, without pointers.
unsafe impl DeviceCopy for Padded {}

#[test]
fn a_param_is_read_by_its_own_type_alone() {
    let value = Padded { count: 3, scale: 0.5 };
    let given = [RawArg::param(value).unwrap(), RawArg::scalar([3_u64, 4]).unwrap()];
    let [RawArg::Param(param), RawArg::Scalar(scalar)] = &given else { panic!("{given:?}") };
    assert_eq!(param.bytes(), 16);
    let list = [HostArg::Param(param), HostArg::Scalar(scalar)];
    // SAFETY: no buffers.
    let mut args = unsafe { HostArgs::new("test", &list) };
    assert_eq!(args.param::<Padded>().unwrap(), value);
    assert_eq!(args.scalar::<[u64; 2]>().unwrap(), [3, 4]);
    // SAFETY: as above.
    let mut args = unsafe { HostArgs::new("test", &list) };
    // Its padding has no value that `[u64; 2]` could be read from.
    let refused = args.scalar::<[u64; 2]>().unwrap_err();
    assert!(refused.message().contains("Padded` by `param`"), "{refused}");
    assert!(args.param::<Padded>().is_err(), "a scalar is no param");
    // SAFETY: as above.
    let mut args = unsafe { HostArgs::new("test", &list) };
    assert!(args.param::<[u32; 4]>().is_err(), "of another type");
    assert!(args.input::<u8>().is_err(), "no buffer");
}

#[test]
fn checked_elements_are_looked_at() {
    let mut memory = [0_u8, 1, 1];
    let mut buffer = |access| HostArg::Buffer { pointer: memory.as_mut_ptr(), bytes: 3, access };
    let list = [buffer(Access::Read), buffer(Access::ReadWrite)];
    {
        // SAFETY: each argument is taken after the last use of the one before.
        let mut args = unsafe { HostArgs::new("test", &list) };
        assert_eq!(args.input_checked::<bool>().unwrap(), [false, true, true]);
        let flags = args.in_out_checked::<bool>().unwrap();
        flags[0] = true;
    }
    assert_eq!(memory, [1; 3]);
    memory[2] = 2;
    let mut buffer = |access| HostArg::Buffer { pointer: memory.as_mut_ptr(), bytes: 3, access };
    let list = [buffer(Access::Read), buffer(Access::ReadWrite)];
    // SAFETY: as above.
    let mut args = unsafe { HostArgs::new("test", &list) };
    let refused = args.input_checked::<bool>().unwrap_err();
    assert!(refused.message().contains("argument 1"), "{refused}");
    assert!(args.in_out_checked::<bool>().unwrap_err().message().contains("argument 2"));
}

#[test]
fn a_function_takes_addresses_in_the_order_of_the_launch() {
    let buffer = |address, access| RawArg::Buffer { address, bytes: 8, access };
    let given = [
        buffer(0x1000, Access::Read),
        buffer(0x2000, Access::Write),
        RawArg::scalar(5_u16).unwrap(),
        buffer(0x3000, Access::ReadWrite),
        RawArg::param(Padded { count: 1, scale: 2.0 }).unwrap(),
    ];
    let mut list = Vec::new();
    let mut args = FunctionArgs::new("msm", 0x7, &given, &mut list);
    assert_eq!(args.stream() as usize, 7);
    assert_eq!(args.input::<u32>().unwrap(), (0x1000 as *const u32, 2));
    let refused = args.input::<u32>().unwrap_err();
    assert!(refused.message().contains("the function of msm takes"), "{refused}");
    let mut list = Vec::new();
    let mut args = FunctionArgs::new("msm", 0x7, &given[1..], &mut list);
    assert_eq!(args.output::<u8>().unwrap(), (0x2000 as *mut u8, 8));
    assert_eq!(args.scalar::<u16>().unwrap(), 5);
    assert_eq!(args.in_out::<u64>().unwrap(), (0x3000 as *mut u64, 1));
    assert_eq!(args.param::<Padded>().unwrap().count, 1);
    args.check(0).unwrap();
    let failed = args.check(719).unwrap_err();
    assert_eq!(failed.driver().map(DriverError::code), Some(719));
    assert!(failed.to_string().contains("msm"), "{failed}");
}
