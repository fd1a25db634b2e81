//! Processor time of processes, as Linux counts it.

use std::fs;

use anyhow::Context as _;

/// Clock ticks per second in `/proc`: 100 on every Linux that Rust runs on (`USER_HZ` is part of its interface).
const TICKS: f64 = 100.0;

/// Seconds of processor time that a process has used, in user and system mode together, to a hundredth.
pub(super) fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("could not read {path}"))?;
    ticks(&text).map(|ticks| ticks as f64 / TICKS).with_context(|| format!("{path} has another form"))
}

/// Fields 14 and 15 of `proc_pid_stat(5)`. The name in field 2 may hold anything, but ends with the last `)`.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_blanks_and_brackets_do_not_shift_the_fields() {
        let stat = "12 (a) b (c) S 1 12 12 0 -1 4194304 1 0 0 0 250 17 0 0 20 0 3 0 100 1 2 3";
        assert_eq!(ticks(stat), Some(267));
        assert_eq!(ticks("12 (a"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_used_some_time() {
        assert!(cpu_seconds(std::process::id()).unwrap() >= 0.0);
    }
}
