//! Has an init ready for the next clone, made while nobody waits for one.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use farfork_restore::Template;

/// So long after the last start the next init is made. Starts that follow each other faster have the
/// template fork each: to fork two for every clone would only take time from them.
const QUIET: Duration = Duration::from_millis(5);

/// Whom to tell that the init that was ready is in use.
#[derive(Debug)]
pub struct Spares {
    used: SyncSender<()>,
}

impl Spares {
    /// Starts the thread that sees to it, which ends with this.
    pub fn start(template: Arc<Mutex<Template>>) -> Spares {
        let (used, inbox) = sync_channel(1);
        let _ = used.try_send(());
        thread::spawn(move || serve(&template, &inbox));
        Spares { used }
    }

    /// A clone has been started.
    pub fn used(&self) {
        // One word that has not been read yet says it all.
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
        let mut template = template.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = template.renew().and_then(|()| template.prepare());
    }
}
