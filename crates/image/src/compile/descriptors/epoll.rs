//! Watches of epoll instances.

use super::Compiler;
use crate::model::{EpollWatch, OpenFile};

/// Deepest nesting that the kernel allows.
const DEEPEST: u32 = 5;

impl Compiler<'_> {
    /// Adds all watches; instances that others watch come first, so that the kernel never has to
    /// look through an unfinished one.
    pub fn watches(&mut self) {
        let model = self.model;
        let mut instances: Vec<(u32, u32)> = (0..model.files.len() as u32)
            .filter(|file| self.numbers.contains_key(file))
            .filter(|file| matches!(model.files[*file as usize], OpenFile::Epoll { .. }))
            .map(|file| (self.depth(file, DEEPEST), file))
            .collect();
        instances.sort_unstable();
        for (_, file) in instances {
            if let OpenFile::Epoll { watches, .. } = &model.files[file as usize] {
                watches.iter().for_each(|watch| self.watch(file, watch));
            }
        }
    }

    /// How many instances deep the watches of `file` go.
    fn depth(&self, file: u32, left: u32) -> u32 {
        let OpenFile::Epoll { watches, .. } = &self.model.files[file as usize] else { return 0 };
        if left == 0 {
            return 0;
        }
        let below = watches.iter().filter_map(|watch| self.file_of(watch.fd));
        1 + below.map(|file| self.depth(file, left - 1)).max().unwrap_or(0)
    }

    fn file_of(&self, fd: u32) -> Option<u32> {
        let found = self.model.descriptors.iter().find(|descriptor| descriptor.fd == fd);
        found.map(|descriptor| descriptor.file)
    }

    /// Events are given as the kernel kept them. One that was told already and disarmed itself
    /// (`EPOLLONESHOT`) has none left; the kernel adds errors and hang-ups, and may tell them.
    fn watch(&mut self, file: u32, watch: &EpollWatch) {
        let Some(instance) = self.first(file) else { return };
        let text = format!("fd {instance} (epoll) watching fd {}", watch.fd);
        self.detail = self.arena.detail(&text);
        let event = [&watch.events.to_le_bytes()[..], &watch.data.to_le_bytes()].concat();
        let at = self.arena.put(&event, 8);
        let add = libc::EPOLL_CTL_ADD as u64;
        self.push(libc::SYS_epoll_ctl, &[instance.into(), add, watch.fd.into(), at]);
    }
}
