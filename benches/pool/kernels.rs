//! Kernels that keep a stream busy or give it something to do.

use crate::subject::must;
use aquifer::{DeviceVec, HostArgs, Kernel, LaunchConfig, Result, Stream};

/// Runs for so many nanoseconds of the device's clock. On the simulated device it takes no time.
static DELAY: Kernel = Kernel::new(
    "delay",
    r#"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry delay(.param .u64 duration) {
        .reg .pred %p; .reg .u64 %rd<4>;
        ld.param.u64 %rd1, [duration];
        mov.u64 %rd2, %globaltimer;
        add.u64 %rd1, %rd1, %rd2;
    again:
        mov.u64 %rd3, %globaltimer;
        setp.lt.u64 %p, %rd3, %rd1;
        @%p bra again;
        ret;
    }"#,
    |_: &LaunchConfig, mut args: HostArgs<'_>| args.scalar::<u64>().map(drop),
);

/// RMM's kernel: waits for so many ticks of its processor, then writes when it ended.
static SPIN: Kernel = Kernel::new(
    "spin",
    r#"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry spin(.param .u64 out, .param .u64 ticks) {
        .reg .pred %p; .reg .u64 %rd<6>;
        ld.param.u64 %rd1, [out];
        ld.param.u64 %rd2, [ticks];
        cvta.to.global.u64 %rd1, %rd1;
        mov.u64 %rd3, %clock64;
    again:
        mov.u64 %rd4, %clock64;
        sub.u64 %rd5, %rd4, %rd3;
        setp.lt.u64 %p, %rd5, %rd2;
        @%p bra again;
        st.global.u64 [%rd1], %rd4;
        ret;
    }"#,
    |_: &LaunchConfig, mut args: HostArgs<'_>| -> Result<()> {
        args.output::<u64>()?[0] = 1;
        Ok(())
    },
);

/// RMM's `out[i] = in[i] * in[i]`, in steps of the whole grid.
static SQUARE: Kernel = Kernel::new(
    "square",
    r#"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry square(.param .u64 from, .param .u64 to, .param .u32 n) {
        .reg .pred %p; .reg .u32 %r<8>; .reg .u64 %rd<6>;
        ld.param.u64 %rd1, [from];
        ld.param.u64 %rd2, [to];
        ld.param.u32 %r1, [n];
        cvta.to.global.u64 %rd1, %rd1;
        cvta.to.global.u64 %rd2, %rd2;
        mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mov.u32 %r5, %nctaid.x;
        mad.lo.u32 %r2, %r2, %r3, %r4;
        mul.lo.u32 %r5, %r5, %r3;
    again:
        setp.ge.u32 %p, %r2, %r1;
        @%p bra done;
        mul.wide.u32 %rd3, %r2, 4;
        add.u64 %rd4, %rd1, %rd3;
        add.u64 %rd5, %rd2, %rd3;
        ld.global.u32 %r6, [%rd4];
        mul.lo.u32 %r7, %r6, %r6;
        st.global.u32 [%rd5], %r7;
        add.u32 %r2, %r2, %r5;
        bra again;
    done:
        ret;
    }"#,
    |_: &LaunchConfig, mut args: HostArgs<'_>| -> Result<()> {
        let from = args.input::<u32>()?;
        let to = args.output::<u32>()?;
        let n = args.scalar::<u32>()? as usize;
        for (to, from) in to[..n].iter_mut().zip(&from[..n]) {
            *to = from.wrapping_mul(*from);
        }
        Ok(())
    },
);

const ONE_THREAD: LaunchConfig =
    LaunchConfig { grid: (1, 1, 1), block: (1, 1, 1), shared_bytes: 0 };

/// Keeps `stream` busy.
pub(crate) fn delay(stream: &Stream, nanoseconds: u64) {
    let launch = must(stream.launch(&DELAY).scalar(nanoseconds));
    // SAFETY: the kernel touches no memory.
    must(unsafe { launch.launch(ONE_THREAD) });
}

/// Spins, then writes one number.
pub(crate) fn spin(stream: &Stream, out: &mut DeviceVec<u64>, ticks: u64) {
    let launch = must(must(stream.launch(&SPIN).output(out)).scalar(ticks));
    // SAFETY: the kernel writes the first element of `out`, which has one.
    must(unsafe { launch.launch(ONE_THREAD) });
}

/// Squares all of `from` into `to`, of the same length.
pub(crate) fn square(stream: &Stream, from: &DeviceVec<u32>, to: &mut DeviceVec<u32>) {
    assert_eq!(from.len(), to.len());
    let length = from.len() as u32;
    let launch = must(must(stream.launch(&SQUARE).input(from)).output(to));
    let config = LaunchConfig { grid: (16, 1, 1), block: (256, 1, 1), shared_bytes: 0 };
    // SAFETY: the kernel reads and writes elements below `length`, which both have.
    must(unsafe { must(launch.scalar(length)).launch(config) });
}
