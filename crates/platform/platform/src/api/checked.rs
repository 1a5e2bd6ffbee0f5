//! JSON that is checked and not kept.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Any value that serde_json reads into a tree: of limited depth, with valid texts and numbers.
pub struct Checked;

/// Such a value, if it is an object.
pub struct CheckedObject;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Checked, D::Error> {
        deserializer.deserialize_any(Checked)
    }
}

impl<'de> Deserialize<'de> for CheckedObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CheckedObject, D::Error> {
        deserializer.deserialize_map(CheckedObject)
    }
}

impl<'de> Visitor<'de> for CheckedObject {
    type Value = CheckedObject;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CheckedObject, A::Error> {
        Checked.visit_map(map).map(|Checked| self)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Checked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Checked, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Checked, A::Error> {
        while let Some(Checked) = seq.next_element()? {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Checked, A::Error> {
        while let Some((Checked, Checked)) = map.next_entry()? {}
        Ok(self)
    }
}
