//! The serving nodes of one mount: one for all of its images, or one for each image.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use farfork_sys::sync::locked;

use crate::source::{Cause, Source, SourceAt};

/// The serving nodes of a mount. One that a command named lives as long as an image of it is known.
pub struct Sources {
    deadline: Duration,
    common: Option<Arc<Source>>,
    named: Mutex<BTreeMap<SourceAt, Weak<Source>>>,
}

impl Sources {
    /// Each read and call ends within `deadline`. Images that are asked for without a node come from `common`.
    pub fn new(common: Option<&SourceAt>, deadline: Duration) -> Sources {
        let source = |at: &SourceAt| Arc::new(Source::new(at, deadline));
        Sources { deadline, common: common.map(source), named: Mutex::default() }
    }

    /// The node that is named, or that of all images. A handle with another key is another node: it must not
    /// use a connection that it has not proved itself.
    ///
    /// # Errors
    /// Images of this mount come from nodes of their own, and none is named.
    pub fn of(&self, named: Option<&SourceAt>) -> Result<Arc<Source>, Cause> {
        let Some(at) = named else {
            let none = || "no node is named from which it could come".to_owned();
            return self.common.clone().ok_or_else(none);
        };
        let mut known = locked(&self.named);
        if let Some(source) = known.get(at).and_then(Weak::upgrade) {
            return Ok(source);
        }
        known.retain(|_, source| source.strong_count() > 0);
        let source = Arc::new(Source::new(at, self.deadline));
        known.insert(at.clone(), Arc::downgrade(&source));
        Ok(source)
    }

    /// As it stands in messages.
    pub fn name(&self) -> String {
        self.common.as_ref().map_or_else(|| "several nodes".to_owned(), |source| source.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_one_as_long_as_it_is_used_and_its_key_is_the_same() {
        let at = |key: &str| SourceAt { address: "10.0.0.1:7".into(), key: key.into(), tls: None };
        let sources = Sources::new(None, Duration::from_secs(1));
        assert!(sources.of(None).is_err());
        let one = sources.of(Some(&at("a"))).unwrap();
        assert!(Arc::ptr_eq(&one, &sources.of(Some(&at("a"))).unwrap()));
        assert!(!Arc::ptr_eq(&one, &sources.of(Some(&at("b"))).unwrap()));
        drop(one);
        sources.of(Some(&at("c"))).unwrap();
        assert_eq!(sources.named.lock().unwrap().len(), 1);
        let sources = Sources::new(Some(&at("a")), Duration::from_secs(1));
        assert_eq!(sources.of(None).unwrap().name(), "tcp://10.0.0.1:7");
    }
}
