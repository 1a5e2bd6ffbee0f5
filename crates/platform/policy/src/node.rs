//! A node, as facts and choices have it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A node: its number, and its name where decisions are written down. Journals have the name alone. Numbers are in the
/// order of names, so that both sort alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeRef {
    name: Box<str>,
    number: u32,
}

impl NodeRef {
    /// A node by its number alone, which costs no memory.
    pub fn numbered(number: u32) -> NodeRef {
        NodeRef { name: Box::default(), number }
    }

    /// A node with its name.
    pub fn named(number: u32, name: &str) -> NodeRef {
        NodeRef { name: name.into(), number }
    }

    /// The number; 0 of a node that is known by its name.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The name; empty of a node that is known by its number.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A node that is known by its name, such as that of a journal.
impl From<&str> for NodeRef {
    fn from(name: &str) -> NodeRef {
        NodeRef::named(0, name)
    }
}

impl Serialize for NodeRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name)
    }
}

impl<'de> Deserialize<'de> for NodeRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NodeRef, D::Error> {
        Ok(NodeRef { name: Box::deserialize(deserializer)?, number: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_have_names_and_both_sort_alike() {
        let node = NodeRef::named(7, "n8");
        let text = serde_json::to_string(&Some(&node)).unwrap();
        assert_eq!(text, "\"n8\"");
        assert_eq!(serde_json::from_str::<NodeRef>(&text).unwrap(), NodeRef::from("n8"));
        assert!(NodeRef::named(1, "a") < NodeRef::named(2, "b"));
        assert!(NodeRef::numbered(1) < NodeRef::numbered(2));
        assert_eq!((NodeRef::numbered(2).number(), NodeRef::numbered(2).name()), (2, ""));
    }
}
