//! What takes memory of a node: an instance or a ghost.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The name of an instance or a ghost. Journals have it as text: `7`, `ghost-9`. Instances come before
/// ghosts, and each in the order of their texts.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OccupantId(Kind);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    Instance(u64),
    Ghost(u64),
    /// Of a journal that an earlier version has written.
    Other(Box<str>),
}

/// What stands before the number of a ghost.
const GHOST: &str = "ghost-";

impl OccupantId {
    /// An instance.
    pub const fn instance(number: u64) -> OccupantId {
        OccupantId(Kind::Instance(number))
    }

    /// A ghost.
    pub const fn ghost(number: u64) -> OccupantId {
        OccupantId(Kind::Ghost(number))
    }

    /// The number, if it is an instance.
    pub const fn as_instance(&self) -> Option<u64> {
        match self.0 {
            Kind::Instance(number) => Some(number),
            _ => None,
        }
    }

    /// The number, if it is a ghost.
    pub const fn as_ghost(&self) -> Option<u64> {
        match self.0 {
            Kind::Ghost(number) => Some(number),
            _ => None,
        }
    }
}

/// A number in canonical digits.
fn number(text: &str) -> Option<u64> {
    let is_canonical = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| is_canonical)
}

impl From<&str> for OccupantId {
    fn from(text: &str) -> OccupantId {
        if let Some(number) = number(text) {
            return OccupantId::instance(number);
        }
        let ghost = text.strip_prefix(GHOST).and_then(number);
        OccupantId(ghost.map_or_else(|| Kind::Other(text.into()), Kind::Ghost))
    }
}

impl fmt::Display for OccupantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Instance(number) => write!(f, "{number}"),
            Kind::Ghost(number) => write!(f, "{GHOST}{number}"),
            Kind::Other(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for OccupantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Default for OccupantId {
    fn default() -> OccupantId {
        OccupantId(Kind::Other("".into()))
    }
}

/// A key that orders numbers as their digits are ordered as text: 10 before 9.
fn digits(number: u64) -> (u128, u32) {
    let length = number.checked_ilog10().unwrap_or(0) + 1;
    (u128::from(number) * 10_u128.pow(20 - length), length)
}

impl Ord for OccupantId {
    fn cmp(&self, other: &OccupantId) -> Ordering {
        match (&self.0, &other.0) {
            (Kind::Instance(one), Kind::Instance(other))
            | (Kind::Ghost(one), Kind::Ghost(other)) => digits(*one).cmp(&digits(*other)),
            (Kind::Instance(_), Kind::Ghost(_)) => Ordering::Less,
            (Kind::Ghost(_), Kind::Instance(_)) => Ordering::Greater,
            _ => self.to_string().cmp(&other.to_string()),
        }
    }
}

impl PartialOrd for OccupantId {
    fn partial_cmp(&self, other: &OccupantId) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Serialize for OccupantId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for OccupantId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OccupantId, D::Error> {
        Ok(OccupantId::from(&*String::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = String> {
        let number = prop_oneof![0u64..200, any::<u64>()];
        prop_oneof![
            number.clone().prop_map(|number| number.to_string()),
            number.prop_map(|number| format!("ghost-{number}")),
            "[0-9a-z+-]{0,8}",
        ]
    }

    #[test]
    fn numbers_are_told_from_other_names() {
        assert_eq!(OccupantId::from("7"), OccupantId::instance(7));
        assert_eq!(OccupantId::from("ghost-0").as_ghost(), Some(0));
        for other in ["", "07", "+7", "ghost-", "ghost-a3f0", "ghost-07", "18446744073709551616"] {
            let id = OccupantId::from(other);
            assert_eq!(
                (id.as_instance(), id.as_ghost(), id.to_string().as_str()),
                (None, None, other)
            );
        }
    }

    proptest! {
        #[test]
        fn they_are_ordered_and_written_as_their_texts(one in text(), other in text()) {
            let (id, of_other) = (OccupantId::from(&*one), OccupantId::from(&*other));
            prop_assert_eq!(id.cmp(&of_other), one.cmp(&other));
            prop_assert_eq!(id == of_other, one == other);
            let written = serde_json::to_string(&id).unwrap();
            prop_assert_eq!(&written, &serde_json::to_string(&one).unwrap());
            prop_assert_eq!(serde_json::from_str::<OccupantId>(&written).unwrap(), id);
        }
    }
}
