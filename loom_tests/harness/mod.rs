//! What every model shares: how it is run, and the driver that it runs against.

#![allow(dead_code, unreachable_pub, reason = "each target has its own copy and uses a part of it")]

pub mod driver;
mod memory;
pub mod pool;
pub mod vector;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The bound on preemptions that the floors are for.
const BOUND: usize = 3;

/// A thread's stack, in words.
const STACK: usize = 16 << 10;

/// What one thread of a model does. Results go into the state, or a role asserts them itself.
pub type Role<S> = fn(&S);

/// Runs a scenario in every order of its roles: the first of an order is the main thread, which
/// spawns the others in their order. `begin` and `end` run alone, before and after all roles.
///
/// Fails if loom ran fewer than `floor` executions, all orders together: a model that has lost its
/// conflicts passes in no time.
pub fn model<S: Send + Sync + 'static>(
    name: &str,
    floor: usize,
    begin: fn() -> S,
    roles: &[Role<S>],
    end: fn(&S),
) {
    explore(name, 0, floor, begin, roles, end);
}

/// As [`model`], with a bound on preemptions that is lower by one: for models of many steps.
pub fn large_model<S: Send + Sync + 'static>(
    name: &str,
    floor: usize,
    begin: fn() -> S,
    roles: &[Role<S>],
    end: fn(&S),
) {
    explore(name, 1, floor, begin, roles, end);
}

fn explore<S: Send + Sync + 'static>(
    name: &str,
    less: usize,
    floor: usize,
    begin: fn() -> S,
    roles: &[Role<S>],
    end: fn(&S),
) {
    let asked = match std::env::var("LOOM_MAX_PREEMPTIONS") {
        Ok(text) => text.parse().expect("LOOM_MAX_PREEMPTIONS is a number"),
        Err(_) => BOUND,
    };
    let bound = asked.saturating_sub(less);
    let executions = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let orders = orders(roles);
    for order in &orders {
        let mut builder = loom::model::Builder::new();
        builder.max_branches = 10_000;
        builder.preemption_bound = Some(bound);
        // These end a model early and call it a pass. The builder reads them from the environment.
        builder.max_duration = None;
        builder.max_permutations = None;
        builder.checkpoint_file = None;
        let (order, executions) = (order.clone(), executions.clone());
        builder.check(move || {
            executions.fetch_add(1, Ordering::Relaxed);
            let order = order.clone();
            // loom's own main thread has a stack of 32 KiB, too small for what a pool makes there.
            spawn(move || run(&order, begin, end)).join().expect("the roles panicked");
        });
    }
    let ran = executions.load(Ordering::Relaxed);
    println!(
        "{name}: {ran} executions in {:.1?}, preemption bound {bound}, role orders {}",
        started.elapsed(),
        orders.len()
    );
    // A lower bound than usual is for a quick look, and cannot reach the floor.
    let floor = if asked < BOUND { orders.len() } else { floor };
    assert!(ran >= floor, "{name}: {ran} executions, and {floor} are the floor");
}

/// One execution: the first role on this thread, the others on threads of their own.
fn run<S: Send + Sync + 'static>(order: &[Role<S>], begin: fn() -> S, end: fn(&S)) {
    let state = Arc::new(begin());
    let spawned: Vec<_> = order[1..]
        .iter()
        .map(|role| {
            let (role, state) = (*role, state.clone());
            spawn(move || {
                role(&state);
                drop(state);
                // As at a thread's end, where loom's `join` does not wait for it.
                aquifer::models::drop_thread_locals();
            })
        })
        .collect();
    order[0](&state);
    for thread in spawned {
        thread.join().expect("a role panicked");
    }
    end(&state);
}

fn spawn(body: impl FnOnce() + Send + 'static) -> loom::thread::JoinHandle<()> {
    let thread = loom::thread::Builder::new().stack_size(STACK);
    thread.spawn(body).expect("loom makes threads")
}

/// All orders of the roles.
fn orders<S>(roles: &[Role<S>]) -> Vec<Vec<Role<S>>> {
    if roles.len() <= 1 {
        return vec![roles.to_vec()];
    }
    let mut all = Vec::new();
    for first in 0..roles.len() {
        let mut rest = roles.to_vec();
        let first = rest.remove(first);
        all.extend(orders(&rest).into_iter().map(|mut order| {
            order.insert(0, first);
            order
        }));
    }
    all
}
