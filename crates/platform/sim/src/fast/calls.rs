//! Calls that have not ended.

/// A call to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its place in the trace.
    pub request: usize,
    /// When it arrives, in microseconds since the first one.
    pub arrival_us: u64,
    /// Index of its function.
    pub function: u32,
    /// How long it runs with all memory near, in microseconds.
    pub duration_us: u64,
    /// Bytes of its arguments.
    pub payload_bytes: u64,
}

/// A call that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// The call.
    pub call: Call,
    /// When it arrived by the simulated clock.
    pub since_us: u64,
    /// How long it runs in its instance, once it has one.
    pub run_us: u64,
}

impl Open {
    /// A call that arrives.
    pub fn new(call: Call, since_us: u64) -> Open {
        Open { call, since_us, run_us: call.duration_us }
    }
}

/// The calls that have not ended, by number. Numbers of ended calls are given again.
#[derive(Debug, Default)]
pub struct Calls {
    open: Vec<Option<Open>>,
    free: Vec<usize>,
}

impl Calls {
    /// Adds a call, and returns its number.
    pub fn add(&mut self, open: Open) -> usize {
        match self.free.pop() {
            Some(number) => {
                self.open[number] = Some(open);
                number
            }
            None => {
                self.open.push(Some(open));
                self.open.len() - 1
            }
        }
    }

    /// An open call.
    pub fn get(&self, number: usize) -> Option<&Open> {
        self.open.get(number)?.as_ref()
    }

    /// An open call, to be changed.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Open> {
        self.open.get_mut(number)?.as_mut()
    }

    /// Removes a call, which has ended.
    pub fn end(&mut self, number: usize) -> Option<Open> {
        let ended = self.open.get_mut(number)?.take();
        self.free.extend(ended.is_some().then_some(number));
        ended
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_ends_once_and_its_number_is_given_again() {
        let call =
            Call { request: 0, arrival_us: 0, function: 0, duration_us: 0, payload_bytes: 0 };
        let open = |request| Open::new(Call { request, ..call }, 0);
        let mut calls = Calls::default();
        assert_eq!([calls.add(open(7)), calls.add(open(8))], [0, 1]);
        assert_eq!(calls.end(0).map(|one| one.call.request), Some(7));
        assert!(calls.end(0).is_none() && calls.end(9).is_none());
        assert_eq!((calls.len(), calls.add(open(9)), calls.len()), (1, 0, 2));
        assert_eq!(calls.get(0).map(|one| one.call.request), Some(9));
    }
}
