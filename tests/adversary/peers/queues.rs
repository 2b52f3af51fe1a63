//! A device that runs each kernel at once, unless its stream is held up or waits for one that is.

use super::Use;
use std::collections::VecDeque;

#[derive(Clone, Copy)]
enum Operation {
    Kernel(u64),
    /// Until the other stream has run so many operations.
    Wait {
        stream: usize,
        operations: usize,
    },
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Operation>,
    given: usize,
    run: usize,
    /// The last kernel that has run.
    past: u64,
    stalled: bool,
}

pub(crate) struct Queues(Vec<Queue>);

impl Queues {
    pub(crate) fn new(streams: usize) -> Self {
        Self((0..streams).map(|_| Queue::default()).collect())
    }

    pub(crate) fn work(&mut self, one: Use) {
        self.give(one.stream, Operation::Kernel(one.mark));
    }

    pub(crate) fn order(&mut self, stream: usize, before: usize) {
        let operations = self.0[before].given;
        self.give(stream, Operation::Wait { stream: before, operations });
    }

    pub(crate) fn stall(&mut self, stream: usize, stalled: bool) {
        self.0[stream].stalled = stalled;
        self.run();
    }

    pub(crate) fn is_past(&self, one: Use) -> bool {
        self.0[one.stream].past >= one.mark
    }

    fn give(&mut self, stream: usize, operation: Operation) {
        self.0[stream].waiting.push_back(operation);
        self.0[stream].given += 1;
        self.run();
    }

    fn run(&mut self) {
        while (0..self.0.len()).any(|stream| self.run_one(stream)) {}
    }

    /// Runs the next operation of a stream, if it can.
    fn run_one(&mut self, stream: usize) -> bool {
        let next = self.0[stream].waiting.front().copied();
        let Some(next) = next.filter(|_| !self.0[stream].stalled) else { return false };
        if let Operation::Wait { stream, operations } = next
            && self.0[stream].run < operations
        {
            return false;
        }
        let queue = &mut self.0[stream];
        queue.waiting.pop_front();
        queue.run += 1;
        if let Operation::Kernel(mark) = next {
            queue.past = mark;
        }
        true
    }
}

#[test]
fn a_stream_waits_for_one_that_is_held_up() {
    let mut queues = Queues::new(2);
    let [first, second] = [0, 1].map(|stream| Use { stream, mark: 1 });
    queues.stall(0, true);
    queues.work(first);
    queues.order(1, 0);
    queues.work(second);
    assert!(!queues.is_past(first) && !queues.is_past(second));
    queues.stall(0, false);
    assert!(queues.is_past(first) && queues.is_past(second));
}
