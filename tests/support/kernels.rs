//! Kernels that give streams something to do, on a GPU and on the simulated device.

#![allow(dead_code, unreachable_pub, reason = "each test target uses a part of it")]

use aquifer::{DeviceRead, DeviceWrite, ErrorKind, HostArgs, Kernel, LaunchConfig, Result, Stream};

/// The PTX text of an entry that does nothing, for a kernel whose host form is all that a test is about:
/// its name, and the types of its parameters.
#[allow(unused_macros, reason = "as above")]
macro_rules! idle_entry {
    ($name:literal) => { idle_entry!(@text $name, "") };
    ($name:literal, $first:ident: $type:ident $(, $more:ident: $types:ident)*) => {
        idle_entry!(@text $name, concat!(
            ".param .", stringify!($type), " ", stringify!($first),
            $(", .param .", stringify!($types), " ", stringify!($more),)*
        ))
    };
    (@text $name:literal, $parameters:expr) => {
        concat!(
            ".version 6.4\n.target sm_50\n.address_size 64\n.visible .entry ",
            $name, "(", $parameters, ") { ret; }"
        )
    };
}
#[allow(unused_imports, reason = "as above")]
pub(crate) use idle_entry;

/// Keeps a GPU's stream busy for so many nanoseconds.
pub static SPIN: Kernel = Kernel::new(
    "spin",
    r#"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry spin(.param .u64 nanoseconds) {
        .reg .pred %p; .reg .u64 %rd<4>;
        ld.param.u64 %rd1, [nanoseconds];
        mov.u64 %rd2, %globaltimer;
        add.u64 %rd2, %rd2, %rd1;
    again:
        mov.u64 %rd3, %globaltimer;
        setp.lt.u64 %p, %rd3, %rd2;
        @%p bra again;
        ret;
    }"#,
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        std::thread::sleep(std::time::Duration::from_nanos(args.scalar::<u64>()?));
        Ok(())
    },
);

/// Adds one to each element.
pub static ADD_ONE: Kernel = Kernel::new(
    "add_one",
    r#"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry add_one(.param .u64 data, .param .u32 n) {
        .reg .pred %p; .reg .u32 %r<5>; .reg .u64 %rd<3>;
        ld.param.u64 %rd1, [data];
        ld.param.u32 %r1, [n];
        mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
        mad.lo.u32 %r2, %r2, %r3, %r4;
        setp.ge.u32 %p, %r2, %r1;
        @%p bra done;
        cvta.to.global.u64 %rd1, %rd1;
        mul.wide.u32 %rd2, %r2, 4;
        add.u64 %rd1, %rd1, %rd2;
        ld.global.u32 %r3, [%rd1];
        add.u32 %r3, %r3, 1;
        st.global.u32 [%rd1], %r3;
    done:
        ret;
    }"#,
    |_config: &LaunchConfig, mut args: HostArgs<'_>| -> Result<()> {
        let data = args.in_out::<u32>()?;
        let n = args.scalar::<u32>()? as usize;
        data[..n].iter_mut().for_each(|value| *value = value.wrapping_add(1));
        Ok(())
    },
);

/// Doubles each element where it lies. The last parameter is the number of elements.
pub static DOUBLE: Kernel = Kernel::new(
    "double",
    r#"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry double(.param .u64 data, .param .u32 n) {
        .reg .pred %p; .reg .u32 %r<5>; .reg .u64 %rd<3>;
        ld.param.u64 %rd1, [data];
        ld.param.u32 %r1, [n];
        mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
        mad.lo.u32 %r2, %r2, %r3, %r4;
        setp.ge.u32 %p, %r2, %r1;
        @%p bra done;
        cvta.to.global.u64 %rd1, %rd1;
        mul.wide.u32 %rd2, %r2, 4;
        add.u64 %rd1, %rd1, %rd2;
        ld.global.u32 %r3, [%rd1];
        shl.b32 %r3, %r3, 1;
        st.global.u32 [%rd1], %r3;
    done:
        ret;
    }"#,
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        args.in_out::<u32>()?.iter_mut().for_each(|value| *value = value.wrapping_mul(2));
        Ok(())
    },
);

/// Copies one buffer to another.
pub static COPY: Kernel = Kernel::new(
    "copy_words",
    r#"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry copy_words(.param .u64 from, .param .u64 to, .param .u32 n) {
        .reg .pred %p; .reg .u32 %r<5>; .reg .u64 %rd<4>;
        ld.param.u64 %rd1, [from];
        ld.param.u64 %rd2, [to];
        ld.param.u32 %r1, [n];
        mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
        mad.lo.u32 %r2, %r2, %r3, %r4;
        setp.ge.u32 %p, %r2, %r1;
        @%p bra done;
        cvta.to.global.u64 %rd1, %rd1;
        cvta.to.global.u64 %rd2, %rd2;
        mul.wide.u32 %rd3, %r2, 4;
        add.u64 %rd1, %rd1, %rd3;
        add.u64 %rd2, %rd2, %rd3;
        ld.global.u32 %r3, [%rd1];
        st.global.u32 [%rd2], %r3;
    done:
        ret;
    }"#,
    |_config: &LaunchConfig, mut args: HostArgs<'_>| -> Result<()> {
        let from = args.input::<u32>()?;
        let to = args.output::<u32>()?;
        let n = args.scalar::<u32>()? as usize;
        to[..n].copy_from_slice(&from[..n]);
        Ok(())
    },
);

/// Adds one to all of `data`, on `stream`, which `data` is lent to.
pub fn add_one(stream: &Stream, data: &mut impl DeviceWrite<u32>) -> Result<()> {
    let length = data.as_device_slice().len();
    let launch = stream.launch(&ADD_ONE).in_out(data)?.scalar(length as u32)?;
    // SAFETY: the kernel touches `length` elements of `data` alone, as it was declared.
    unsafe { launch.launch(LaunchConfig::for_elements(length)) }
}

/// Copies all of `from` to `to`, of the same length, on `stream`, which both are lent to.
pub fn copy(
    stream: &Stream,
    from: &impl DeviceRead<u32>,
    to: &mut impl DeviceWrite<u32>,
) -> Result<()> {
    let length = from.as_device_slice().len();
    assert_eq!(length, to.as_device_slice().len());
    let launch = stream.launch(&COPY).input(from)?.output(to)?.scalar(length as u32)?;
    // SAFETY: the kernel reads `length` elements of `from` and writes as many of `to`.
    unsafe { launch.launch(LaunchConfig::for_elements(length)) }
}

/// The kind of the error that a call must give.
pub fn kind<T>(result: Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("an error was wanted"),
        Err(error) => error.kind(),
    }
}
