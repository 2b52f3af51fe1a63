//! A context that one thread loses while a host form of another runs on memory that it was lent.

use crate::kernels::idle_entry;
use crate::player::Player;
use crate::shared::{Shared, Step, Stop, lock};
use aquifer::{HostArgs, Kernel, LaunchConfig, Result};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const BEFORE: u32 = 0;
const INSIDE: u32 = 1;
const CHANGED: u32 = 2;
const ENDED: u32 = 3;

/// How long one thread waits for the other, and how long a form runs on when the context is lost.
const MOMENT: Duration = Duration::from_millis(3);
const LONGER: Duration = Duration::from_micros(150);

/// Where a host form meets the thread that loses its context.
struct Meeting {
    taken: AtomicBool,
    form: AtomicU32,
    lost: AtomicBool,
}

static MEETINGS: [Meeting; 4] = [const {
    Meeting {
        taken: AtomicBool::new(false),
        form: AtomicU32::new(BEFORE),
        lost: AtomicBool::new(false),
    }
}; 4];

/// A program's meeting, until this is dropped.
pub(crate) struct Taken(usize);

pub(crate) fn meeting(shared: &Shared) -> Taken {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % MEETINGS.len();
    let meeting = &MEETINGS[number];
    meeting.taken.store(true, Ordering::Relaxed);
    meeting.form.store(BEFORE, Ordering::Relaxed);
    meeting.lost.store(false, Ordering::Relaxed);
    shared.meeting.store(number, Ordering::Relaxed);
    Taken(number)
}

impl Drop for Taken {
    fn drop(&mut self) {
        MEETINGS[self.0].taken.store(false, Ordering::Relaxed);
    }
}

fn soon(holds: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > MOMENT {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Looks at what it was lent until the context is lost, and for a while after.
static LOOK: Kernel = Kernel::new(
    "look",
    idle_entry!("look", number: u32, lent: u64),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let meeting = &MEETINGS[args.scalar::<u32>()? as usize];
        let lent: &[u32] = args.input()?;
        let first = lent.first().copied();
        meeting.form.store(INSIDE, Ordering::SeqCst);
        soon(|| meeting.lost.load(Ordering::SeqCst));
        std::thread::sleep(LONGER);
        let same = lent.iter().all(|found| Some(*found) == first);
        meeting.form.store(if same { ENDED } else { CHANGED }, Ordering::SeqCst);
        Ok(())
    },
);

/// The same, and writes it then.
static CHANGE: Kernel = Kernel::new(
    "change",
    idle_entry!("change", number: u32, lent: u64),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let meeting = &MEETINGS[args.scalar::<u32>()? as usize];
        let lent: &mut [u32] = args.in_out()?;
        meeting.form.store(INSIDE, Ordering::SeqCst);
        soon(|| meeting.lost.load(Ordering::SeqCst));
        std::thread::sleep(LONGER);
        lent.fill(0);
        meeting.form.store(ENDED, Ordering::SeqCst);
        Ok(())
    },
);

impl Player<'_> {
    /// What the first thread and the second of such a program do once.
    pub(crate) fn meet_fate(&mut self) -> Step {
        let number = self.shared.meeting.load(Ordering::Relaxed);
        if self.me == 0 { self.lose(&MEETINGS[number]) } else { self.lend_to_a_form(number) }
    }

    fn lose(&mut self, meeting: &Meeting) -> Step {
        let Some(simulator) = self.shared.simulator.clone() else { return Ok(()) };
        let beside = soon(|| meeting.form.load(Ordering::SeqCst) != BEFORE);
        self.shared.lost.store(true, Ordering::SeqCst);
        self.says(|| format!("loses the context; a form runs: {beside}"));
        simulator.lose_context();
        meeting.lost.store(true, Ordering::SeqCst);
        self.count("contexts lost");
        if beside {
            self.count("contexts lost under a form");
        }
        Err(Stop::Lost)
    }

    fn lend_to_a_form(&mut self, number: usize) -> Step {
        let meeting = &MEETINGS[number];
        let (value, after) = (self.shared.value(), self.shared.value());
        let (mut host, writes) = (self.host(value)?, self.random.one_in(2));
        let (stream, length) = (self.own.clone(), self.shared.setup.length);
        let scoped: Result<()> = stream.scope(|scope| {
            if writes {
                let mut lent = scope.map_mut(&mut host)?;
                let launch = stream.launch(&CHANGE).scalar(number as u32)?;
                let launch = launch.mapped_in_out(&mut lent)?;
                // SAFETY: it writes what it is lent.
                unsafe { launch.launch(LaunchConfig::for_elements(length))? };
            } else {
                let lent = scope.map(&host)?;
                let launch = stream.launch(&LOOK).scalar(number as u32)?.mapped_input(&lent)?;
                // SAFETY: it reads what it is lent.
                unsafe { launch.launch(LaunchConfig::for_elements(length))? };
            }
            // So that the wait at the end begins when the context is gone.
            soon(|| meeting.lost.load(Ordering::SeqCst));
            Ok(())
        });
        let form = meeting.form.load(Ordering::SeqCst);
        if form == INSIDE {
            return Err(Stop::Failed("host memory went back while a form ran on it".into()));
        }
        if form == CHANGED {
            return Err(Stop::Failed("lent host memory changed under a form".into()));
        }
        // Its owner's again.
        host.fill(after);
        lock(&self.shared.hosts).push((host, after));
        self.took("forms on lent memory", scoped).map(drop)
    }
}
