//! Pictures as SVG text: panels with lines over a few named places, and the pieces they are made of.
//!
//! Owns shapes, colours and text sizes. Knows nothing of what is drawn.

use std::fmt::Write as _;

/// Colours that most colour-blind people tell apart (Okabe and Ito, 2008), the darkest first.
pub(super) const COLOURS: [&str; 7] =
    ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
pub(super) const GREY: &str = "#777777";
const PALE: &str = "#e4e4e4";

/// A picture being drawn: shapes in the order in which they were added, later ones above.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    shapes: String,
}

/// Where a text begins, or which part of it stands at its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// An empty white picture of that many pixels.
    pub(super) const fn new(width: f64, height: f64) -> Self {
        Self { width, height, shapes: String::new() }
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
        self.add(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#
        ));
    }

    /// Lines from point to point.
    pub(super) fn path(&mut self, points: &[(f64, f64)], colour: &str) {
        let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!(
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
            list.join(" ")
        ));
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), colour: &str) {
        self.add(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#));
    }

    /// A bar; a hollow one has only its border.
    pub(super) fn bar(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        colour: &str,
        is_hollow: bool,
    ) {
        let fill = if is_hollow { "#ffffff" } else { colour };
        // Never so thin that it cannot be seen.
        let width = width.max(0.8);
        self.add(format_args!(
            r#"<rect x="{x:.2}" y="{y:.1}" width="{width:.2}" height="{height:.1}" fill="{fill}" stroke="{colour}" stroke-width="0.8"/>"#
        ));
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), size: u32, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        ));
    }

    fn add(&mut self, shape: std::fmt::Arguments<'_>) {
        // Writing into a String cannot fail.
        let _ = writeln!(self.shapes, "{shape}");
    }

    /// The file.
    pub(super) fn finish(self) -> String {
        let Self { width, height, shapes } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"Helvetica, Arial, sans-serif\">\n\
             <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n{shapes}</svg>\n"
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// One diagram among several of the same kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Panel {
    pub(super) title: String,
    /// Named places on the horizontal axis, evenly apart.
    pub(super) places: Vec<String>,
    /// One line each, with a value for every place that has one.
    pub(super) series: Vec<Series>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) values: Vec<Option<f64>>,
}

const PANEL: (f64, f64) = (320.0, 240.0);
const MARGIN: (f64, f64) = (52.0, 44.0);
const HEAD: f64 = 64.0;
const COLUMNS: usize = 3;

/// Panels side by side under one title and one legend; the vertical axes begin at 0, each with its own scale.
pub(super) fn panels(title: &str, unit: &str, panels: &[Panel]) -> String {
    let columns = panels.len().clamp(1, COLUMNS);
    let rows = panels.len().div_ceil(columns).max(1);
    let (width, height) = (PANEL.0 * columns as f64, PANEL.1 * rows as f64 + HEAD);
    let mut svg = Svg::new(width, height);
    svg.text((12.0, 24.0), 16, Anchor::Start, title);
    let names: Vec<&str> = panels
        .first()
        .map(|panel| panel.series.iter().map(|s| s.name.as_str()).collect())
        .unwrap_or_default();
    let mut x = 12.0;
    for (at, name) in names.iter().enumerate() {
        svg.line((x, 43.0), (x + 18.0, 43.0), COLOURS[at % COLOURS.len()]);
        svg.dot((x + 9.0, 43.0), COLOURS[at % COLOURS.len()]);
        svg.text((x + 24.0, 47.0), 12, Anchor::Start, name);
        x += 24.0 + 8.0 * name.len() as f64 + 22.0;
    }
    for (at, panel) in panels.iter().enumerate() {
        let corner = ((at % columns) as f64 * PANEL.0, HEAD + (at / columns) as f64 * PANEL.1);
        draw(&mut svg, corner, unit, panel);
    }
    svg.finish()
}

fn draw(svg: &mut Svg, (left, top): (f64, f64), unit: &str, panel: &Panel) {
    let (x0, x1) = (left + MARGIN.0, left + PANEL.0 - 16.0);
    let (y0, y1) = (top + PANEL.1 - MARGIN.1, top + 30.0);
    svg.text((x0, top + 16.0), 13, Anchor::Start, &format!("{} ({unit})", panel.title));
    let most = panel.series.iter().flat_map(|s| s.values.iter().flatten()).fold(0.0_f64, |a, b| a.max(*b));
    let step = tick(most);
    let ceiling = (most / step).ceil().max(1.0) * step;
    let y_of = |value: f64| y0 - (y0 - y1) * value / ceiling;
    let n_ticks = (ceiling / step).round() as usize;
    for value in (0..=n_ticks).map(|n| n as f64 * step) {
        let y = y_of(value);
        svg.line((x0, y), (x1, y), if value == 0.0 { GREY } else { PALE });
        svg.text((x0 - 6.0, y + 4.0), 11, Anchor::End, &format!("{value}"));
    }
    // A single place stands in the middle.
    let n = panel.places.len();
    let x_of = |at: usize| x0 + (x1 - x0) * (at as f64 + 0.5) / n.max(1) as f64;
    for (at, place) in panel.places.iter().enumerate() {
        svg.text((x_of(at), y0 + 18.0), 11, Anchor::Middle, place);
    }
    for (at, series) in panel.series.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let points: Vec<(f64, f64)> = series
            .values
            .iter()
            .enumerate()
            .filter_map(|(place, value)| value.map(|value| (x_of(place), y_of(value))))
            .collect();
        svg.path(&points, colour);
        points.iter().for_each(|&point| svg.dot(point, colour));
    }
}

/// A round distance between lines of the grid: 3 to 6 of them up to `most`.
pub(super) fn tick(most: f64) -> f64 {
    let rough = (most / 4.0).max(1e-9);
    let power = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999);
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (most, step) in [(100.0, 25.0), (7.0, 2.0), (83.0, 25.0), (0.4, 0.1), (1234.0, 500.0)] {
            assert!((tick(most) - step).abs() < 1e-9, "{most}: {}", tick(most));
        }
        assert!(tick(0.0) > 0.0);
    }

    #[test]
    fn a_picture_holds_what_was_drawn() {
        let series = |name: &str, values: &[f64]| Series {
            name: name.into(),
            values: values.iter().map(|&value| Some(value)).collect(),
        };
        let panel = Panel {
            title: "copy".into(),
            places: vec!["0 ms".into(), "a<b".into()],
            series: vec![series("off", &[50.0, 10.0]), series("auto", &[60.0, 55.0])],
        };
        let svg = panels("Two ways", "tok/s", &[panel]);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains(">a&lt;b<") && svg.contains(">copy (tok/s)<") && svg.contains(">auto<"));
    }
}
