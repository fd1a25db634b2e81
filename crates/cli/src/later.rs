//! Names that the command line already reserves: asking for one gets a sentence, not a guess at a typing error.

/// Commands and flags that a later version brings.
const NAMES: &[&str] = &["plan", "pull", "--memory"];

/// What to say of `name`, if it is one of them.
pub(crate) fn sentence(name: &str) -> Option<String> {
    let name = name.split_once('=').map_or(name, |(flag, _)| flag);
    NAMES.contains(&name).then(|| format!("`{name}` comes with a later version of Paceline"))
}
