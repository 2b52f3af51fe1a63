//! The search for the program that wastes most: the worst of a population are changed, and what is worse stays.

use crate::draw::Draw;
use crate::program::{Program, Sizes, Step};
use crate::random::Random;

/// How many programs are kept.
const POPULATION: usize = 24;

/// Programs of one population; then another begins, so that the search does not end where the first one came to. The last
/// one begins with the worst of all.
const OF_POPULATION: u64 = 1000;

/// One in so many is new.
const NEW: usize = 6;

/// A program and its worst quotient.
#[derive(Clone)]
pub(crate) struct Judged {
    pub(crate) program: Program,
    pub(crate) ratio: f64,
}

/// Looks at so many programs. Returns the worst.
pub(crate) fn search(
    programs: u64,
    seed: u64,
    sizes: Sizes,
    mut judge: impl FnMut(&Program) -> f64,
) -> Judged {
    let mut best: Vec<Judged> = Vec::new();
    let populations = programs.div_ceil(OF_POPULATION);
    for population in 0..populations {
        let mut random = Random::new(seed, population);
        let mut draw = Draw { random: &mut random, sizes };
        let mut kept: Vec<Judged> = Vec::new();
        if population + 1 == populations {
            kept.clone_from(&best);
        }
        let count = OF_POPULATION.min(programs - population * OF_POPULATION);
        for number in 0..count {
            let is_new = number < count / 6 || draw.random.one_in(NEW) || kept.is_empty();
            let program = match is_new {
                true => draw.program(),
                false => {
                    let [one, other] = [(); 2].map(|()| fitter(&kept, draw.random));
                    draw.mutant(&kept[one].program, &kept[other].program)
                }
            };
            let ratio = judge(&program);
            insert(&mut kept, Judged { program, ratio });
        }
        kept.truncate(POPULATION / 4);
        kept.into_iter().for_each(|one| insert(&mut best, one));
    }
    // No program is none that wastes.
    let nothing = Judged { program: Program { steps: Vec::new() }, ratio: 0.0 };
    best.into_iter().next().unwrap_or(nothing)
}

/// The worse of two that are drawn.
fn fitter(kept: &[Judged], random: &mut Random) -> usize {
    random.below(kept.len()).min(random.below(kept.len()))
}

/// Keeps the worst, the worst first. Of programs that are as bad, the shorter one.
fn insert(kept: &mut Vec<Judged>, one: Judged) {
    if kept.iter().any(|other| other.program == one.program) {
        return;
    }
    let is_worse = |other: &Judged| {
        let order = other.ratio.total_cmp(&one.ratio).reverse();
        order.then(other.program.steps.len().cmp(&one.program.steps.len())).is_le()
    };
    let at = kept.partition_point(is_worse);
    kept.insert(at, one);
    kept.truncate(POPULATION);
}

/// Leaves out of a program what does not make it better, by steps and then by counts.
pub(crate) fn minimised(worst: &Judged, mut judge: impl FnMut(&Program) -> f64) -> Judged {
    // A hundredth less is as bad.
    let least = worst.ratio * 0.99;
    let mut now = worst.clone();
    let mut try_one = |now: &mut Judged, steps: Vec<Step>| {
        let program = Program { steps };
        let ratio = judge(&program);
        let is_as_bad = ratio >= least;
        if is_as_bad {
            *now = Judged { program, ratio };
        }
        is_as_bad
    };
    let mut part = now.program.steps.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        while at < now.program.steps.len() {
            let mut steps = now.program.steps.clone();
            steps.drain(at..(at + part).min(steps.len()));
            if !try_one(&mut now, steps) {
                at += part;
            }
        }
        part /= 2;
    }
    for at in 0..now.program.steps.len() {
        for simpler in SIMPLER {
            loop {
                let mut steps = now.program.steps.clone();
                let Some(step) = simpler(steps[at]).filter(|step| *step != steps[at]) else {
                    break;
                };
                steps[at] = step;
                if !try_one(&mut now, steps) {
                    break;
                }
            }
        }
    }
    now
}

/// Ways to make a step simpler.
const SIMPLER: [fn(Step) -> Option<Step>; 5] = [
    |step| match step {
        Step::Allocate { first, count, bytes, more, mut by } => {
            by.thread = 0;
            Some(Step::Allocate { first, count, bytes, more, by })
        }
        Step::Free { first, count, every, mut by } => {
            by.thread = 0;
            Some(Step::Free { first, count, every, by })
        }
        _ => None,
    },
    |step| match step {
        Step::Allocate { first, count, bytes, by, .. } => {
            Some(Step::Allocate { first, count, bytes, more: 0, by })
        }
        _ => None,
    },
    |step| match step {
        Step::Allocate { first, count, bytes, more, mut by } => {
            by.stream = 0;
            Some(Step::Allocate { first, count, bytes, more, by })
        }
        Step::Free { first, count, every, mut by } => {
            by.stream = 0;
            Some(Step::Free { first, count, every, by })
        }
        _ => None,
    },
    |step| match step {
        Step::Allocate { first, count, bytes, more, by } if count > 1 => {
            Some(Step::Allocate { first, count: count - count.div_ceil(8), bytes, more, by })
        }
        Step::Free { first, count, every, by } if count > 1 => {
            Some(Step::Free { first, count: count - count.div_ceil(8), every, by })
        }
        Step::Grow { block, times, more, by } if times > 1 => {
            Some(Step::Grow { block, times: times - 1, more, by })
        }
        _ => None,
    },
    |step| match step {
        Step::Busy { stream, steps } if steps > 1 => Some(Step::Busy { stream, steps: steps - 1 }),
        _ => None,
    },
];

#[test]
fn a_search_finds_a_worse_program_and_makes_it_short() {
    // What counts is how many frees come behind a trim.
    let judge = |program: &Program| {
        let steps = program.steps.iter().skip_while(|step| !matches!(step, Step::Trim { .. }));
        steps.filter(|step| matches!(step, Step::Free { .. })).count() as f64
    };
    let worst = search(600, 1, Sizes::Large, judge);
    let again = search(600, 1, Sizes::Large, judge);
    assert_eq!(worst.program, again.program);
    assert!(worst.ratio >= 8.0, "{}", worst.ratio);
    let short = minimised(&worst, judge);
    assert_eq!(short.program.steps.len() as f64, short.ratio + 1.0);
}
