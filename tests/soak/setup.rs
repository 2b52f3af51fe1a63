//! What a program's seed says about its device and its pool.

use crate::patterns::Pattern;
use crate::random::Random;
use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceResource, PoolResource, Result,
    mr::{AsyncResource, Handles, MissPolicy, MissStep, VirtualResource},
};
use std::sync::Arc;

pub(crate) type Pool = PoolResource<Arc<dyn DeviceResource>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upstream {
    Plain,
    /// Apart from its addresses.
    Mapped,
    StreamOrdered,
    PoolOverPlain,
    PoolOverStreamOrdered,
}

/// All of it comes from the seed.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) upstream: Upstream,
    /// Of the simulated device, in bytes.
    pub(crate) capacity: usize,
    pub(crate) maximum: Option<usize>,
    initial: usize,
    soft_limit: Option<usize>,
    growth_step: Option<usize>,
    alignment: usize,
    steps: Option<Vec<MissStep>>,
    magazine_entries: Option<usize>,
    magazine_bytes: Option<usize>,
    pub(crate) threads: usize,
    pub(crate) streams: usize,
    /// So many of them are another library's.
    pub(crate) foreign: usize,
    /// Of each thread.
    pub(crate) operations: Vec<usize>,
    /// Requests are sized by this.
    pub(crate) scale: usize,
    /// Elements of the sizes that come back; none if every size is new.
    pub(crate) lengths: Vec<usize>,
    pub(crate) injects: bool,
    pub(crate) captures: bool,
    /// Threads fork.
    pub(crate) forks: bool,
    /// A memory manager is between the program and its pool.
    pub(crate) managed: bool,
    /// The upstream sleeps and waits.
    pub(crate) waits: bool,
    /// Once it waits until another thread has gone on without it.
    pub(crate) is_patient: bool,
    /// What most operations have in common.
    pub(crate) pattern: Option<Pattern>,
    /// The pool has no setting but those of its threads' caches, and all vectors are of one size.
    untuned: bool,
}

/// Whether the device follows what the pools of this program hand out. Half of them take a pool's way without
/// a lock, which a pool that is followed does not. By all bits of the seed, since the last ones say which
/// programs race and which have a pattern.
fn is_followed(seed: u64) -> bool {
    support::pool_checks().unwrap_or(seed.count_ones().is_multiple_of(2))
}

/// Of mapped memory: all maxima are multiples of it.
const GRANULE: usize = 4096;

const RUNGS: [MissStep; 7] = [
    MissStep::Complete,
    MissStep::Ordered,
    MissStep::Grow,
    MissStep::Wait,
    MissStep::GrowToMaximum,
    MissStep::Gather,
    MissStep::Trim,
];

impl Setup {
    pub(crate) fn new(random: &mut Random, on_gpu: bool) -> Self {
        let scale = random.pick(&[16 << 10, 64 << 10, 64 << 10, 256 << 10]);
        let alignment = random.pick(&[256, 256, 256, 512, 4096]);
        let maximum = (!random.one_in(8)).then_some(scale);
        // Now and then upstream runs out before the pool's own maximum.
        let capacity = match maximum {
            Some(maximum) if random.one_in(8) => maximum / 2,
            Some(maximum) => 4 * maximum,
            None => 2 * scale,
        };
        let initial = random.pick(&[0, 0, 0, scale / 4, scale / 2, scale]).min(capacity / 4);
        let upstream = match random.below(8) {
            0..3 => Upstream::Plain,
            3..6 => Upstream::StreamOrdered,
            6 => Upstream::PoolOverPlain,
            _ => Upstream::PoolOverStreamOrdered,
        };
        let steps = match random.below(6) {
            0..3 => None,
            3 => Some(MissPolicy::rmm().steps().to_vec()),
            4 => {
                let mut all = RUNGS;
                random.shuffle(&mut all);
                Some(all.to_vec())
            }
            // One step alone, so that none hides behind those before it.
            _ => Some(vec![random.pick(&RUNGS), MissStep::GrowToMaximum]),
        };
        let threads = random.pick(&[1, 1, 2, 2, 3]);
        let lengths = match random.below(3) {
            0 => Vec::new(),
            _ => (0..1 + random.below(3)).map(|_| 1 + random.below(scale / 64)).collect(),
        };
        let operations = (0..threads).map(|_| (15 + random.below(45)) / threads + 4).collect();
        let mut setup = Self {
            upstream,
            capacity,
            maximum,
            initial: initial / alignment * alignment,
            soft_limit: random.one_in(3).then_some(scale / 2),
            growth_step: (maximum.is_none() || random.one_in(2))
                .then_some(random.pick(&[scale / 16, scale / 8, scale / 4]).max(alignment)),
            alignment,
            steps,
            magazine_entries: random.pick(&[None, Some(0), Some(1), Some(2), Some(8)]),
            magazine_bytes: random.pick(&[None, None, Some(4 << 10), Some(64 << 10)]),
            threads,
            streams: 1 + random.below(4),
            foreign: 0,
            operations,
            scale,
            lengths,
            injects: !on_gpu && random.one_in(4),
            captures: !on_gpu && random.one_in(4),
            forks: false,
            managed: false,
            waits: false,
            is_patient: false,
            pattern: None,
            untuned: false,
        };
        setup.foreign = random.pick(&[0, 0, 1, setup.streams]);
        // What waits may be freed in the middle of a capture, and would be a part of it.
        setup.managed = !setup.captures && random.one_in(6);
        if random.one_in(8) {
            setup.have_waits();
        }
        setup
    }

    /// A program whose upstream waits. In a capture it could not.
    fn have_waits(&mut self) {
        (self.waits, self.captures) = (true, false);
    }

    /// A program in which upstream waits for a thread that has to grow the pool, and can.
    pub(crate) fn be_patient(&mut self) {
        self.have_waits();
        (self.is_patient, self.maximum, self.steps) = (true, None, None);
        (self.initial, self.growth_step) = (0, Some(self.scale / 16));
        self.capacity = 4 * self.scale;
    }

    /// A program of a pattern. Driver calls that fail and captures are for the others.
    pub(crate) fn of(pattern: Pattern, random: &mut Random, on_gpu: bool) -> Self {
        let mut setup = Self::new(random, on_gpu);
        setup.pattern = Some(pattern);
        (setup.injects, setup.captures) = (false, false);
        (setup.managed, setup.waits) = (false, false);
        (setup.threads, setup.streams) = (pattern.threads(random), pattern.streams(random));
        setup.operations = (0..setup.threads).map(|_| 8 + random.below(24)).collect();
        let small = matches!(pattern, Pattern::Callbacks | Pattern::ManyStreams);
        if !small && random.one_in(2) {
            setup.untuned = true;
            setup.maximum = None;
            (setup.initial, setup.soft_limit, setup.growth_step, setup.steps) =
                (0, None, None, None);
            setup.capacity = 4 << 30;
            let size = random.pick(&[256 << 10, 512 << 10, 1 << 20]);
            setup.lengths = vec![size / size_of::<u32>()];
        }
        setup
    }

    /// The bytes of every vector of a program whose pool has the default policy.
    pub(crate) fn one_size(&self) -> Option<usize> {
        self.untuned.then(|| self.lengths[0] * size_of::<u32>())
    }

    pub(crate) fn device(&self, seed: u64) -> Device {
        let mut config =
            SimConfig::default().seed(seed).capacity(self.capacity).granularity(GRANULE);
        // Large memory that is hardly written to.
        if self.untuned {
            config = config.without_poison();
        }
        Device::simulated(if is_followed(seed) { config } else { config.without_pool_checks() })
    }

    /// Has the pool map its memory, if the seed says so and the device maps as little as the program takes.
    pub(crate) fn map(&mut self, seed: u64, on_gpu: bool) {
        let is_small_enough = !on_gpu || self.untuned;
        if self.upstream == Upstream::Plain && is_small_enough && (seed / 32).is_multiple_of(8) {
            self.upstream = Upstream::Mapped;
        }
    }

    /// Whether nothing but the pool's maximum limits it, by the device's memory at least.
    pub(crate) fn maximum_is_the_limit(&self) -> bool {
        self.maximum.is_some_and(|maximum| self.capacity >= 2 * maximum)
    }

    /// Whether the pool's memory comes from the driver's plain allocations, which can be exported.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.upstream, Upstream::Plain | Upstream::PoolOverPlain)
    }

    /// Whether a free alone gives nothing back to upstream.
    pub(crate) fn returns_nothing(&self) -> bool {
        self.soft_limit.is_none()
    }

    /// Whether a miss climbs all steps that a full pool needs to give what it has: what streams have
    /// freed is gathered first, and then whole blocks of upstream go back for larger ones.
    pub(crate) fn climbs_all(&self) -> bool {
        let Some(steps) = &self.steps else { return true };
        let place = |step| steps.iter().position(|other| *other == step);
        let grows = place(MissStep::GrowToMaximum).is_some();
        matches!((place(MissStep::Gather), place(MissStep::Trim)), (Some(first), Some(last)) if first < last)
            && grows
    }

    /// The pool over what `over` makes of its upstream, and the one below it where there is one.
    pub(crate) fn pool(
        &self,
        device: &Device,
        over: impl FnOnce(Arc<dyn DeviceResource>) -> Arc<dyn DeviceResource>,
    ) -> Result<(Pool, Option<Pool>)> {
        let plain = || -> Arc<dyn DeviceResource> { Arc::new(CudaResource::new(device)) };
        let ordered =
            || -> Result<Arc<dyn DeviceResource>> { Ok(Arc::new(AsyncResource::new(device)?)) };
        let below = match self.upstream {
            Upstream::Plain => return Ok((self.build(over(plain()), Handles::Off)?, None)),
            Upstream::Mapped => {
                let mapped = Arc::new(VirtualResource::new(device)?);
                return Ok((self.build(over(mapped), Handles::Auto)?, None));
            }
            Upstream::StreamOrdered => {
                return Ok((self.build(over(ordered()?), Handles::Auto)?, None));
            }
            Upstream::PoolOverPlain => plain(),
            Upstream::PoolOverStreamOrdered => ordered()?,
        };
        // Small steps, so that the upper pool's blocks come from memory that was used before.
        let step = (self.scale / 8).max(4096);
        let lower = PoolResource::builder(below).growth_step(step).handles(Handles::Off).build()?;
        let erased: Arc<dyn DeviceResource> = Arc::new(lower.clone());
        Ok((self.build(over(erased), Handles::Auto)?, Some(lower)))
    }

    fn build(&self, upstream: Arc<dyn DeviceResource>, handles: Handles) -> Result<Pool> {
        let mut options = PoolResource::builder(upstream).handles(handles);
        options = options.initial_size(self.initial).alignment(self.alignment);
        if let Some(maximum) = self.maximum {
            options = options.maximum_size(maximum);
        }
        if let Some(limit) = self.soft_limit {
            options = options.soft_limit(limit);
        }
        if let Some(step) = self.growth_step {
            options = options.growth_step(step);
        }
        if let Some(steps) = &self.steps {
            options = options.miss_policy(MissPolicy::new(steps.iter().copied()));
        }
        if let Some(entries) = self.magazine_entries {
            options = options.magazine_entries(entries);
        }
        if let Some(bytes) = self.magazine_bytes {
            options = options.magazine_bytes(bytes);
        }
        options.build()
    }
}
