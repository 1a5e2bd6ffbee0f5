//! Has an init forked for the next clone while no clone is starting.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use farfork_restore::Template;

use farfork_sys::sync::locked;

/// So long after the last start the next init is made. Starts that follow each other faster have the
/// template fork each: to fork two for every clone would only take time from them.
const QUIET: Duration = Duration::from_millis(5);

/// Has the template fork an init after each start.
#[derive(Debug)]
pub struct PreforkedInits {
    used: SyncSender<()>,
}

impl PreforkedInits {
    /// Starts the thread that does it. The thread ends with this value.
    pub fn start(template: Arc<Mutex<Template>>) -> PreforkedInits {
        let (used, inbox) = sync_channel(1);
        let _ = used.try_send(());
        thread::spawn(move || serve(&template, &inbox));
        PreforkedInits { used }
    }

    /// A clone has been started.
    pub fn used(&self) {
        // One unread message is enough.
        let _ = self.used.try_send(());
    }
}

fn serve(template: &Mutex<Template>, inbox: &Receiver<()>) {
    while inbox.recv().is_ok() {
        loop {
            match inbox.recv_timeout(QUIET) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        // Without one a clone starts a little later.
        let mut template = locked(template);
        let _ = template.renew().and_then(|()| template.prepare());
    }
}
