#[path = "../benches/pool/workloads.rs"]
mod workloads;
use aquifer::*;
use std::sync::Arc;
use workloads::*;
struct S {
    r: Arc<dyn DeviceResource>,
    s: Vec<Stream>,
}
impl Pool for S {
    type Block = DeviceBlock;
    #[inline(always)]
    fn allocate(&self, bytes: u64, stream: usize) -> DeviceBlock {
        let layout = DeviceLayout::new(bytes as usize).unwrap();
        self.r.allocate(&self.s[stream], layout).unwrap()
    }
    #[inline(always)]
    fn free(&self, block: DeviceBlock, stream: usize) {
        unsafe { self.r.deallocate(&self.s[stream], block) }
    }
}
struct Null;
impl Pool for Null {
    type Block = [u64; 3];
    #[inline(never)]
    fn allocate(&self, bytes: u64, stream: usize) -> [u64; 3] {
        [bytes, stream as u64, 0]
    }
    #[inline(never)]
    fn free(&self, block: [u64; 3], _: usize) {
        std::hint::black_box(block);
    }
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n: u32 = a[2].parse().unwrap();
    let rounds: u32 = a[3].parse().unwrap();
    let device = Device::simulated(sim::SimConfig::default().capacity(64 << 30));
    let streams: Vec<Stream> = (0..2).map(|_| device.new_stream().unwrap()).collect();
    let pool = PoolResource::builder(CudaResource::new(&device))
        .initial_size(if n > 1000 { 18 << 30 } else { 1 << 30 })
        .build()
        .unwrap();
    let s = S { r: Arc::new(pool.clone()), s: streams };
    match a[1].as_str() {
        "random" => {
            let t = random_trace(n, 1 << 20, 42);
            eprintln!("ops {}", t.ops().len());
            for _ in 0..3 + rounds {
                replay(&s, &t, 0);
            }
        }
        "nullrandom" => {
            let t = random_trace(n, 1 << 20, 42);
            for _ in 0..3 + rounds {
                replay(&Null, &t, 0);
            }
        }
        "churn" => {
            churn(&s, 1, n * rounds);
        }
        "nullchurn" => {
            churn(&Null, 1, n * rounds);
        }
        "hot" => {
            hot(&s, 1 << 20, n * rounds);
        }
        "inlined" => {
            let p = pool;
            let l = DeviceLayout::new(1 << 20).unwrap();
            let st = &s.s[0];
            for _ in 0..n * rounds {
                let b = p.allocate(st, l).unwrap();
                unsafe { p.deallocate(st, b) }
            }
        }
        "construct" => {
            for _ in 0..n * rounds {
                std::hint::black_box(
                    PoolResource::builder(CudaResource::new(&device)).build().unwrap(),
                );
            }
        }
        _ => panic!(),
    }
}
