//! The pictures of `paceline bench`: tokens per second over links, one file for each length of the line.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use net::Shape;

use super::command::Results;
use super::setting::{Row, Strategy};
use super::svg::{self, Panel, Series};
use super::workload::Workload;

/// Draws into the folder, which is made if it is not there, and says what was written.
pub(super) fn write(folder: &Path, results: &Results) -> anyhow::Result<Vec<PathBuf>> {
    let lengths = distinct(results.rows.iter().map(|row| row.stages));
    let mut written = Vec::new();
    for stages in lengths {
        let rows: Vec<&Row> = results.rows.iter().filter(|row| row.stages == stages).collect();
        let (name, title) = match stages {
            None => ("tok_s.svg".to_owned(), "Decoding speed of the server".to_owned()),
            Some(n) => {
                (format!("tok_s-{n}-stages.svg"), format!("Decoding speed of {n} stages, by link delay"))
            }
        };
        written.push(save(folder, &name, &svg::panels(&title, "tok/s", &panels(&rows)))?);
    }
    Ok(written)
}

/// Writes one picture.
pub(super) fn save(folder: &Path, name: &str, picture: &str) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
    let path = folder.join(name);
    fs::write(&path, picture).with_context(|| format!("could not write {}", path.display()))?;
    Ok(path)
}

/// One for each workload.
fn panels(rows: &[&Row]) -> Vec<Panel> {
    let links = distinct(rows.iter().map(|row| &row.link));
    let strategies = distinct(rows.iter().map(|row| &row.speculate));
    let value = |workload: Workload, link: &Option<String>, strategy: &Strategy| {
        let found = rows
            .iter()
            .find(|row| row.workload == workload && row.link == *link && row.speculate == *strategy);
        found.map(|row| row.decode_tok_s)
    };
    let panel = |workload| Panel {
        title: format!("{workload}"),
        places: links.iter().map(|link| place(link.as_deref())).collect(),
        series: strategies
            .iter()
            .map(|strategy| Series {
                name: strategy.to_string(),
                values: links.iter().map(|link| value(workload, link, strategy)).collect(),
            })
            .collect(),
    };
    distinct(rows.iter().map(|row| row.workload)).into_iter().map(panel).collect()
}

/// A link's name: its delay if it has nothing else.
fn place(link: Option<&str>) -> String {
    let Some(text) = link else { return "0 ms".to_owned() };
    match text.parse::<Shape>() {
        Ok(shape) if shape == (Shape { delay: shape.delay, ..Shape::default() }) => ms(shape.delay),
        _ => text.to_owned(),
    }
}

/// A duration in milliseconds.
pub(super) fn ms(time: Duration) -> String {
    format!("{} ms", time.as_secs_f64() * 1e3)
}

/// Each value once, in the order of their first appearance.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut list = Vec::new();
    for value in values {
        if !list.contains(&value) {
            list.push(value);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_by_their_delay() {
        assert_eq!(place(None), "0 ms");
        assert_eq!(place(Some("delay=10ms")), "10 ms");
        assert_eq!(place(Some("delay=10ms,jitter=2ms")), "delay=10ms,jitter=2ms");
        assert_eq!(distinct([3, 1, 3].into_iter()), [3, 1]);
    }
}
