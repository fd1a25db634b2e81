//! Where Paceline keeps files: the only place that asks the environment.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context as _;

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn base(variables: [&str; 2], below_home: &str) -> anyhow::Result<PathBuf> {
    let [xdg, windows] = variables;
    if let Some(dir) = variable(xdg) {
        return Ok(PathBuf::from(dir).join("paceline"));
    }
    if cfg!(windows)
        && let Some(dir) = variable(windows)
    {
        return Ok(PathBuf::from(dir).join("paceline"));
    }
    let home = variable("HOME").or_else(|| variable("USERPROFILE"));
    let home = home.with_context(|| format!("neither {xdg} nor HOME is set: set one of them"))?;
    Ok(PathBuf::from(home).join(below_home).join("paceline"))
}

/// Files that can be made again: `~/.cache/paceline`.
///
/// # Errors
/// If the environment names no home.
pub fn cache_dir() -> anyhow::Result<PathBuf> {
    base(["XDG_CACHE_HOME", "LOCALAPPDATA"], ".cache")
}

/// Files that cannot: `~/.config/paceline`.
///
/// # Errors
/// If the environment names no home.
pub fn config_dir() -> anyhow::Result<PathBuf> {
    base(["XDG_CONFIG_HOME", "APPDATA"], ".config")
}

/// The folder of this machine's key, membership and, on the machine that made the cluster, its root key.
///
/// # Errors
/// If the environment names no home.
pub fn cluster_dir() -> anyhow::Result<PathBuf> {
    Ok(config_dir()?.join("cluster"))
}
