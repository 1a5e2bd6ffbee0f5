//! JSON that is kept as text.

use std::sync::Arc;

use serde::de::Deserializer;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::Fields;

/// The text of a JSON value. Copies share it. A tree could take a hundred times as much memory.
#[derive(Clone, Debug)]
pub struct Document(Arc<Box<RawValue>>);

impl Document {
    /// An object, from its text.
    pub fn object(text: Vec<u8>) -> Option<Document> {
        Fields::check(&text).ok()?;
        let text = String::from_utf8(text).ok()?;
        RawValue::from_string(text).ok().map(|text| Document(Arc::new(text)))
    }

    /// The text.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// The value as a tree, for a moment.
    pub fn value(&self) -> Value {
        // The text was checked when this was made.
        serde_json::from_str(self.text()).unwrap_or_default()
    }

    /// Whether it is an object.
    pub fn is_object(&self) -> bool {
        self.text().starts_with('{')
    }

    /// Whether it is an object with this field.
    pub fn has_field(&self, name: &str) -> bool {
        let fields = Fields::parse(self.text().as_bytes());
        fields.is_ok_and(|fields| fields.names().any(|other| other == name))
    }
}

impl From<Value> for Document {
    fn from(value: Value) -> Document {
        // Writing a tree to memory does not fail.
        Document(Arc::new(to_raw_value(&value).unwrap_or_default()))
    }
}

impl PartialEq for Document {
    fn eq(&self, other: &Document) -> bool {
        self.text() == other.text()
    }
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Document, D::Error> {
        Box::deserialize(deserializer).map(|text| Document(Arc::new(text)))
    }
}
