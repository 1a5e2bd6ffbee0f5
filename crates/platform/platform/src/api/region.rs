//! The region for objects that a function names by an annotation, and where its instances find it.

use serde_json::Value;

use super::{ApiError, Parameters};

/// The annotation: the name of a region of the function's namespace. An empty text means none.
const ANNOTATION: &str = "region";
/// The descriptor of the region's file in an instance. The base image has it open, too.
pub const DESCRIPTOR: u32 = 3;
/// The variable of an instance's environment that names the region.
pub const VARIABLE: &str = "FARFORK_REGION";
/// The variable that names the library.
pub const LIBRARY: &str = "FARFORK_LIBRARY";
/// The value of [`VARIABLE`]: what programs open. Each client needs a description of its own, so the descriptor is opened once more.
pub const PATH: &str = "/proc/self/fd/3";
/// Longest name.
const LONGEST: usize = 200;

/// The region in an action's annotations.
pub fn of(annotations: &Parameters) -> Option<String> {
    match annotations.get(ANNOTATION)? {
        Value::String(name) if !name.is_empty() => Some(name),
        _ => None,
    }
}

/// Refuses an annotation that does not name a region.
pub fn check(annotations: &Parameters) -> Result<(), ApiError> {
    let given = annotations.get(ANNOTATION).unwrap_or_default();
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = |name: &str| {
        name.len() <= LONGEST && name.bytes().all(is_fit) && !name.starts_with(['.', '-'])
    };
    match given {
        Value::Null => Ok(()),
        Value::String(name) if is_name(&name) => Ok(()),
        other => Err(ApiError::BadRequest(format!(
            "invalid region {}: use the name of a region of the namespace, without the namespace (up to \
             {LONGEST} letters, digits, '.', '_' and '-'), or an empty text for none",
            other.to_string().chars().take(LONGEST).collect::<String>()
        ))),
    }
}

/// The descriptors that an instance closes before it loads anything.
pub fn unused(region_bytes: Option<u64>) -> &'static [u32] {
    if region_bytes.is_some() { &[] } else { &[DESCRIPTOR] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_region_is_named_without_its_namespace() {
        let with = |value: Value| Parameters::from_iter([("region", value)]);
        let named = with(json!("points-2"));
        assert_eq!((of(&named).as_deref(), check(&named)), (Some("points-2"), Ok(())));
        for none in [with(json!("")), with(json!(null)), Parameters::default()] {
            assert_eq!((of(&none), check(&none)), (None, Ok(())));
        }
        for bad in [json!("other/points"), json!("../x"), json!(".x"), json!(7), json!(true)] {
            let refused = check(&with(bad.clone())).unwrap_err();
            assert_eq!(refused.status(), 400, "{bad}");
            assert!(refused.to_string().contains("invalid region "), "{refused}");
        }
        assert!(check(&with(json!("x".repeat(201)))).is_err());
    }
}
