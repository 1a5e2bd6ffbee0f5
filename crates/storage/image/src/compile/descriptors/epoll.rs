//! Watches of epoll instances.

use std::collections::BTreeMap;

use super::Compiler;
use crate::model::{EpollWatch, OpenFile};

/// Deepest nesting that the kernel allows.
const DEEPEST: u32 = 5;

impl Compiler<'_> {
    /// Adds all watches of this process's descriptors. Instances that others watch come first, so that
    /// the kernel never looks through an unfinished one.
    pub fn watches(&mut self) {
        let depths = self.depths();
        let mut instances: Vec<(u32, u32)> =
            depths.into_iter().map(|(file, depth)| (depth, file)).collect();
        instances.sort_unstable();
        for (_, file) in instances {
            if let OpenFile::Epoll { watches, .. } = &self.model.files[file as usize] {
                let index = self.index;
                let own = watches.iter().filter(|watch| watch.member as usize == index);
                own.for_each(|watch| self.watch(file, watch));
            }
        }
    }

    /// How many instances deep the watches of each instance go.
    fn depths(&self) -> BTreeMap<u32, u32> {
        let files: BTreeMap<u32, u32> =
            self.member.descriptors.iter().map(|own| (own.fd, own.file)).collect();
        let watches = |file: u32| match &self.model.files[file as usize] {
            OpenFile::Epoll { watches, .. } => {
                Some(watches.iter().filter(|watch| watch.member as usize == self.index))
            }
            _ => None,
        };
        let instances = self.numbers.keys().copied().filter(|file| watches(*file).is_some());
        let mut depths: BTreeMap<u32, u32> = instances.map(|file| (file, 1)).collect();
        // Each round sees one level more.
        for _ in 1..DEEPEST {
            let before = depths.clone();
            for (file, depth) in &mut depths {
                let below = watches(*file).into_iter().flatten();
                let below = below.filter_map(|watch| before.get(files.get(&watch.fd)?));
                *depth = 1 + below.max().copied().unwrap_or(0);
            }
        }
        depths
    }

    /// Events are given as the kernel kept them. A watch that was reported and disarmed itself
    /// (`EPOLLONESHOT`) has none left. The kernel adds errors and hang-ups, and may report these.
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
