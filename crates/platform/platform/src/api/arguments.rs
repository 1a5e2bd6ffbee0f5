//! Arguments of calls: JSON that is checked but not parsed. A tree of values would take up to a hundred
//! times as much memory, for as long as the call waits.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::Parameters;
use super::checked::CheckedObject;
use crate::memory::Reservation;

/// The arguments of a call: the text of one JSON object. Copies share it.
#[derive(Clone, Debug)]
pub struct Arguments(Arc<Held>);

#[derive(Debug)]
struct Held {
    text: Box<RawValue>,
    /// Its memory, if that is counted.
    _memory: Option<Reservation>,
}

impl Arguments {
    /// The arguments in a body: an object, or nothing.
    pub fn from_body(body: Vec<u8>) -> serde_json::Result<Arguments> {
        if body.is_empty() {
            return Ok(Arguments::default());
        }
        serde_json::from_slice::<CheckedObject>(&body)?;
        let text = String::from_utf8(body).map_err(Error::custom)?;
        Ok(Arguments::of(RawValue::from_string(text)?))
    }

    fn of(text: Box<RawValue>) -> Arguments {
        Arguments(Arc::new(Held { text, _memory: None }))
    }

    /// The arguments with the memory that was reserved for them, which is given back when the last copy
    /// is dropped.
    pub fn held(self, mut memory: Reservation) -> Arguments {
        memory.shrink_to(self.text().len() as u64);
        match Arc::try_unwrap(self.0) {
            Ok(Held { text, .. }) => Arguments(Arc::new(Held { text, _memory: Some(memory) })),
            Err(shared) => Arguments(shared),
        }
    }

    /// The text.
    pub fn text(&self) -> &str {
        self.0.text.get()
    }

    /// The fields.
    pub fn fields(&self) -> serde_json::Result<Fields<'_>> {
        Fields::parse(self.text().as_bytes())
    }
}

impl Default for Arguments {
    fn default() -> Arguments {
        Fields::default().arguments(&Parameters::default())
    }
}

impl PartialEq for Arguments {
    fn eq(&self, other: &Arguments) -> bool {
        self.text() == other.text()
    }
}

impl Serialize for Arguments {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Arguments, D::Error> {
        Box::deserialize(deserializer).map(Arguments::of)
    }
}

/// Fields of an object, with values that are not parsed.
#[derive(Debug, Default)]
pub struct Fields<'a>(Vec<(Cow<'a, str>, Cow<'a, RawValue>)>);

impl<'a> Fields<'a> {
    /// The fields of an object.
    pub fn parse(text: &'a [u8]) -> serde_json::Result<Fields<'a>> {
        serde_json::from_slice::<CheckedObject>(text)?;
        serde_json::from_slice(text)
    }

    /// Checks that a text is an object.
    pub fn check(text: &[u8]) -> serde_json::Result<()> {
        serde_json::from_slice::<CheckedObject>(text).map(drop)
    }

    /// Adds a field.
    pub fn put(&mut self, key: impl Into<Cow<'a, str>>, value: &impl Serialize) {
        // It fails only for a map with keys that cannot be texts.
        let value = to_raw_value(value).unwrap_or_default();
        self.0.push((key.into(), Cow::Owned(value)));
    }

    /// Adds fields.
    pub fn extend(&mut self, others: Fields<'a>) {
        self.0.extend(others.0);
    }

    /// The names, some perhaps more than once.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| &**key)
    }

    /// Bytes of the text of these fields and of bound parameters, at most.
    pub fn most_bytes(&self, bound: &Parameters) -> usize {
        let given = |(key, value): &(Cow<'_, str>, Cow<'_, RawValue>)| {
            // Of a key's letters, control characters become six.
            6 * key.len() + value.get().len() + 4
        };
        bound.bytes() + self.0.iter().map(given).sum::<usize>() + 2
    }

    /// The arguments of a call: bound parameters, overridden by these fields. Of equal keys the last
    /// counts.
    pub fn arguments(&self, bound: &Parameters) -> Arguments {
        let bound = bound.entries();
        let bound = bound.iter().map(|entry| (&*entry.key, entry.value));
        let given = self.0.iter().map(|(key, value)| (&**key, &**value));
        let all: Vec<(&str, &RawValue)> = bound.chain(given).collect();
        let last: HashMap<&str, usize> =
            all.iter().enumerate().map(|(index, (key, _))| (*key, index)).collect();
        let bytes: usize = all.iter().map(|(key, value)| key.len() + value.get().len() + 4).sum();
        let mut text = Vec::with_capacity(bytes + 2);
        text.push(b'{');
        for (index, (key, value)) in all.into_iter().enumerate() {
            if last.get(key) != Some(&index) {
                continue;
            }
            if text.len() > 1 {
                text.push(b',');
            }
            // Writing a text to memory does not fail.
            let _ = serde_json::to_writer(&mut text, key);
            text.push(b':');
            text.extend(value.get().as_bytes());
        }
        text.push(b'}');
        drop(last);
        let text = String::from_utf8(text).unwrap_or_default();
        Arguments::of(RawValue::from_string(text).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'de>, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Vec::new();
        while let Some(Key(key)) = map.next_key()? {
            fields.push((key, Cow::Borrowed(map.next_value::<&RawValue>()?)));
        }
        Ok(Fields(fields))
    }
}

/// A text that is borrowed unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &[u8]) -> serde_json::Result<Arguments> {
        Arguments::from_body(body.to_vec())
    }

    #[test]
    fn what_a_tree_would_refuse_is_refused() {
        let deep = "{\"a\":".repeat(200) + "1" + &"}".repeat(200);
        for bad in [
            &b"[1]"[..],
            b"null",
            b"{",
            b"{\"a\":1}x",
            b"{\"a\":NaN}",
            b"{\"a\":1e999}",
            b"{\"a\":\"\\ud800\"}",
            b"{\"\\ud800\":1}",
            b"{\"a\":\"\xff\"}",
            b"{\"\xff\":1}",
            deep.as_bytes(),
        ] {
            assert!(serde_json::from_slice::<serde_json::Map<String, Value>>(bad).is_err());
            assert!(read(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(read(b"").unwrap().text(), "{}");
        assert_eq!(read(b" {\"a\" : [1, 2]}\n").unwrap().text(), "{\"a\" : [1, 2]}");
    }

    #[test]
    fn given_fields_override_bound_parameters() {
        let bound = Parameters::from_iter([("a", json!(1)), ("b", json!([2])), ("a", json!(4))]);
        let given = Fields::parse(b"{\"b\":1,\"c\":null,\"\\n\":1e2,\"b\":3}").unwrap();
        let merged = given.arguments(&bound);
        assert_eq!(merged.text(), "{\"a\":4,\"c\":null,\"\\n\":1e2,\"b\":3}");
        assert!(merged.text().len() <= given.most_bytes(&bound));
    }
}
