//! Media types and extensions.

use mime::{Mime, Name};

/// How a result is returned, by the extension of the action's name in the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// `.http`, or none: status, headers and body as the result says.
    Http,
    /// `.json`: the result itself.
    Json,
    /// `.html`: a text of the result.
    Html,
    /// `.svg`: a text of the result.
    Svg,
    /// `.text`: a value of the result.
    Text,
}

impl Extension {
    const ALL: [(&str, Extension); 5] = [
        (".http", Extension::Http),
        (".json", Extension::Json),
        (".html", Extension::Html),
        (".svg", Extension::Svg),
        (".text", Extension::Text),
    ];

    /// The action's name and its extension. An unknown extension is a part of the name.
    pub fn split(name: &str) -> (&str, Extension) {
        let known = |(end, extension)| Some((name.strip_suffix(end)?, extension));
        Extension::ALL.into_iter().find_map(known).unwrap_or((name, Extension::Http))
    }
}

/// Whether this media type is JSON.
pub fn is_json(kind: &Mime) -> bool {
    let is_it = kind.type_() == mime::APPLICATION && kind.subtype() == mime::JSON;
    is_it || kind.suffix() == Some(mime::JSON)
}

/// Whether this media type is a form.
pub fn is_form(kind: &Mime) -> bool {
    kind.essence_str() == mime::APPLICATION_WWW_FORM_URLENCODED.essence_str()
}

/// Whether this media type is text. All other content is bytes, which JSON holds in base64.
pub fn is_text(kind: &Mime) -> bool {
    const TEXTS: [Name<'static>; 2] = [mime::XML, mime::JAVASCRIPT];
    let is_known = |name: Name<'_>| TEXTS.contains(&name);
    let is_application = kind.type_() == mime::APPLICATION;
    let is_marked = is_known(kind.subtype()) || kind.suffix().is_some_and(is_known);
    kind.type_() == mime::TEXT || is_json(kind) || is_form(kind) || is_application && is_marked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_is_the_last_known_one() {
        for (text, name, extension) in [
            ("a", "a", Extension::Http),
            ("a.http", "a", Extension::Http),
            ("a.json", "a", Extension::Json),
            ("a.html", "a", Extension::Html),
            ("a.svg", "a", Extension::Svg),
            ("a.text", "a", Extension::Text),
            ("a.py", "a.py", Extension::Http),
            ("a.json.text", "a.json", Extension::Text),
            ("a.JSON", "a.JSON", Extension::Http),
            (".json", "", Extension::Json),
        ] {
            assert_eq!(Extension::split(text), (name, extension), "{text}");
        }
    }

    #[test]
    fn media_types_are_classified() {
        for (kind, json, text) in [
            ("application/json", true, true),
            ("application/json; charset=utf-8", true, true),
            ("application/vnd.api+json", true, true),
            ("text/html", false, true),
            ("text/json", false, true),
            ("application/xml", false, true),
            ("application/atom+xml", false, true),
            ("application/x-www-form-urlencoded; charset=utf-8", false, true),
            ("application/javascript", false, true),
            ("application/octet-stream", false, false),
            ("application/pdf", false, false),
            ("image/png", false, false),
            ("image/svg+xml", false, false),
            ("multipart/form-data; boundary=x", false, false),
        ] {
            let mime: Mime = kind.parse().unwrap();
            assert_eq!((is_json(&mime), is_text(&mime)), (json, text), "{kind}");
        }
    }
}
