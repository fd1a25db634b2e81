//! The fields of a JSON object, read one by one with their names in every error. Unknown fields are never looked at.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// A JSON object that came as a body, or inside one.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Where it is in the body, up to a dot; empty for the body itself.
    at: String,
}

impl Fields {
    /// Reads a body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body).map_err(|error| ApiError::Json(error.to_string()))?;
        match value {
            Value::Object(map) => Ok(Self::of(map)),
            other => Err(ApiError::Json(format!("expected an object, found {}", kind(&other)))),
        }
    }

    /// Fields made here.
    pub(crate) const fn of(map: Map<String, Value>) -> Self {
        Self { map, at: String::new() }
    }

    /// A field as errors name it.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.at)
    }

    /// All fields, unknown ones too.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.map.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The field's value; a null is as good as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        #[cfg(test)]
        asked::note(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A number within `range`.
    pub(crate) fn float(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().ok_or_else(|| wrong(&self.path(name), "a number", value))? as f32;
        if !range.contains(&number) {
            return Err(outside(&self.path(name), &number, &range));
        }
        Ok(Some(number))
    }

    /// A whole number within `range`; `16.0` is whole too.
    pub(crate) fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = whole(value).ok_or_else(|| wrong(&self.path(name), "a whole number", value))?;
        if !range.contains(&number) {
            return Err(outside(&self.path(name), &number, &range));
        }
        Ok(Some(number))
    }

    /// A boolean; absent is false.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        Ok(self.maybe_flag(name)?.unwrap_or(false))
    }

    /// A boolean.
    pub(crate) fn maybe_flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong(&self.path(name), "true or false", value))
    }

    /// A string.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| wrong(&self.path(name), "a string", value))
    }

    /// An object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Self>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Self { map: map.clone(), at: format!("{}.", self.path(name)) }))
            }
            Some(value) => Err(wrong(&self.path(name), "an object", value)),
        }
    }

    /// A list.
    pub(crate) fn list(&self, name: &str) -> Result<Option<&[Value]>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value
            .as_array()
            .map(|list| Some(list.as_slice()))
            .ok_or_else(|| wrong(&self.path(name), "a list", value))
    }

    /// Strings in a list, or one string; empty ones are left out.
    pub(crate) fn strings(
        &self,
        name: &str,
        max_count: usize,
        max_bytes: usize,
    ) -> Result<Vec<String>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let list = match value {
            Value::String(_) => std::slice::from_ref(value),
            Value::Array(list) => list.as_slice(),
            _ => return Err(wrong(&self.path(name), "a string or a list of strings", value)),
        };
        if list.len() > max_count {
            let name = self.path(name);
            let message = format!("`{name}` may hold at most {max_count} strings");
            return Err(ApiError::value(name, message));
        }
        let mut strings = Vec::with_capacity(list.len());
        for item in list {
            let text = item
                .as_str()
                .ok_or_else(|| wrong(&self.path(name), "a string or a list of strings", value))?;
            if text.len() > max_bytes {
                let name = self.path(name);
                let message = format!("a string in `{name}` may have at most {max_bytes} bytes");
                return Err(ApiError::value(name, message));
            }
            if !text.is_empty() {
                strings.push(text.to_owned());
            }
        }
        Ok(strings)
    }

    /// The map itself.
    pub(crate) fn into_map(self) -> Map<String, Value> {
        self.map
    }
}

/// A whole number, also one written as `16.0`.
pub(crate) fn whole(value: &Value) -> Option<i64> {
    if let Some(number) = value.as_i64() {
        return Some(number);
    }
    // Every whole number up to 2^53 is exact as a float.
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 9.0e15)?;
    Some(number as i64)
}

/// A value of the wrong type.
pub(crate) fn wrong(name: &str, expected: &str, found: &Value) -> ApiError {
    let found = match found {
        Value::Number(number) => number.to_string(),
        other => kind(other).to_owned(),
    };
    let message = format!("`{name}` must be {expected}, found {found}");
    ApiError::Invalid { code: "invalid_type", param: Some(name.into()), message }
}

fn outside<T: std::fmt::Display>(name: &str, found: &T, range: &RangeInclusive<T>) -> ApiError {
    let message = format!("`{name}` is {found}, but must be from {} to {}", range.start(), range.end());
    ApiError::value(name, message)
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Which fields were asked for, so that a test can compare them with the document that describes them.
#[cfg(test)]
pub(crate) mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static NAMES: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(super) fn note(name: &str) {
        NAMES.with_borrow_mut(|names| names.insert(name.to_owned()));
    }

    /// The names asked for on this thread since the last call.
    pub(crate) fn take() -> BTreeSet<String> {
        NAMES.take()
    }
}
