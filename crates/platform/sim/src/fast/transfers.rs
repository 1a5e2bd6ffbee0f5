//! What moves over a link, and what follows.

use super::Watch;
use super::agenda::{Event, Link};
use super::links::Then;
use super::machine::{LIMIT_US, Machine};

impl<W: Watch> Machine<'_, W> {
    /// Has something happen after what takes so long alone, and moves bytes over a link meanwhile.
    pub fn transfer(&mut self, link: Link, bytes: u64, us: u64, event: Event) {
        if self.links.begin((link, bytes), self.now_us, us, (0, Then::Event(event))) {
            return self.wait_for_link(link);
        }
        let at_us = self.timer(self.now_us, us);
        self.agenda.add(at_us, event);
    }

    /// Has an instance's start move bytes over a link before the rest of it, which takes so long alone in all.
    pub fn transfer_of_start(&mut self, link: Link, bytes: u64, us: u64, instance: u64) {
        if self.links.begin((link, bytes), self.now_us, us, (instance, Then::Start)) {
            return self.wait_for_link(link);
        }
        self.go_on_starting(instance, us);
    }

    /// Has an instance's call move bytes over a link before the rest of its run. Returns false if that is not limited.
    pub fn transfer_of_run(&mut self, link: Link, bytes: u64, us: u64, instance: u64) -> bool {
        let then = Then::Run { until_us: self.now_us.saturating_add(LIMIT_US) };
        let begun = self.links.begin((link, bytes), self.now_us, us, (instance, then));
        if begun {
            self.wait_for_link(link);
        }
        begun
    }

    fn wait_for_link(&mut self, link: Link) {
        if let Some((at_us, change)) = self.links.due(link) {
            let at_us = self.timer(at_us, 0);
            self.agenda.add(at_us, Event::Link(link, change));
        }
    }

    /// Transfers may be over.
    pub fn link_is_due(&mut self, link: Link, change: u64) {
        let Some(ended) = self.links.ended(link, change, self.now_us) else { return };
        for left in ended {
            let transfer = left.transfer;
            match transfer.then {
                Then::Event(event) => {
                    let at_us = self.timer(self.now_us, transfer.rest_us);
                    self.agenda.add(at_us, event);
                }
                Then::Start => self.go_on_starting(transfer.instance, transfer.rest_us),
                Then::Run { .. } if left.is_late => {
                    self.work(transfer.instance, 0, Event::CallEnded(transfer.instance, false));
                }
                Then::Run { .. } => self.go_on(transfer.instance, transfer.rest_us),
            }
        }
        self.wait_for_link(link);
    }
}
