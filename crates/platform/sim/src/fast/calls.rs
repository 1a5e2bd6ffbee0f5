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
    /// How long it runs, in microseconds.
    pub duration_us: u64,
}

/// A call that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// The call.
    pub call: Call,
    /// When it arrived by the simulated clock.
    pub since_us: u64,
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
        let open = |request| Open {
            call: Call { request, arrival_us: 0, function: 0, duration_us: 0 },
            since_us: 0,
        };
        let mut calls = Calls::default();
        assert_eq!([calls.add(open(7)), calls.add(open(8))], [0, 1]);
        assert_eq!(calls.end(0).map(|one| one.call.request), Some(7));
        assert!(calls.end(0).is_none() && calls.end(9).is_none());
        assert_eq!((calls.len(), calls.add(open(9)), calls.len()), (1, 0, 2));
        assert_eq!(calls.get(0).map(|one| one.call.request), Some(9));
    }
}
