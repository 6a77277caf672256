//! Plots as SVG: horizontal bars, and lines over a few places.

use std::fmt::Write;

/// Colours that people with any colour vision can tell apart (Okabe and Ito), the module's own first.
const COLOURS: [&str; 9] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#8c6d31", "#000000"];
const OTHERS: &str = "#9aa5b1";
const INK: &str = "#1f2328";
const FAINT: &str = "#d8dee4";
const WIDTH: f64 = 960.0;
/// Letters of the caption that fit beside each other.
const CAPTION_LETTERS: usize = 160;

/// One bar.
pub struct Bar {
    pub label: String,
    pub value: f64,
    /// What stands at its end.
    pub text: String,
    /// Whether it is the module's own.
    pub own: bool,
}

impl Bar {
    /// Whether a label names one of the module's own commands.
    pub fn is_own(label: &str) -> bool {
        label.starts_with("TB.")
    }
}

/// Bars below each other, with an optional mark at a value that they are to be compared with.
pub struct Bars<'a> {
    pub title: &'a str,
    pub caption: &'a str,
    pub bars: Vec<Bar>,
    pub mark: Option<(f64, String)>,
}

impl Bars<'_> {
    pub fn svg(&self) -> String {
        const LEFT: f64 = 250.0;
        const RIGHT: f64 = 260.0;
        const TOP: f64 = 74.0;
        const STEP: f64 = 32.0;
        let mark = self.mark.as_ref().map_or(0.0, |(value, _)| *value);
        let most = self.bars.iter().map(|bar| bar.value).fold(mark, f64::max).max(f64::MIN_POSITIVE);
        let length = |value: f64| value / most * (WIDTH - LEFT - RIGHT);
        let bottom = TOP + STEP * self.bars.len() as f64;
        let mut canvas = Canvas::new(self.title);
        for (place, bar) in self.bars.iter().enumerate() {
            let y = TOP + STEP * place as f64;
            let colour = if bar.own { COLOURS[0] } else { OTHERS };
            canvas.text(LEFT - 10.0, y + 16.0, Anchor::End, &bar.label, bar.own);
            canvas.rectangle(LEFT, y + 3.0, length(bar.value).max(1.0), 20.0, colour);
            canvas.text(LEFT + length(bar.value) + 8.0, y + 17.0, Anchor::Start, &bar.text, bar.own);
        }
        if let Some((value, name)) = &self.mark {
            let x = LEFT + length(*value);
            canvas.line((x, TOP - 8.0), (x, bottom), INK, 1.0);
            canvas.text(x, TOP - 14.0, Anchor::Middle, name, false);
        }
        canvas.finish(bottom + 18.0, self.caption)
    }
}

/// One line: its name and its values, one for each place.
pub struct Series {
    pub name: String,
    pub values: Vec<f64>,
}

/// Lines that share their places.
pub struct Panel<'a> {
    pub title: &'a str,
    pub series: Vec<Series>,
}

/// Panels beside each other, with one legend.
pub struct Lines<'a> {
    pub title: &'a str,
    pub caption: &'a str,
    /// What is below each place.
    pub places: Vec<String>,
    pub places_are: &'a str,
    pub values_are: &'a str,
    pub panels: Vec<Panel<'a>>,
}

impl Lines<'_> {
    const TOP: f64 = 96.0;
    const HEIGHT: f64 = 280.0;
    const LEGEND: f64 = 250.0;
    const AXIS: f64 = 70.0;

    pub fn svg(&self) -> String {
        let most = self.panels.iter().flat_map(|panel| &panel.series).flat_map(|series| &series.values);
        let scale = Scale::to(most.copied().fold(0.0, f64::max));
        let mut canvas = Canvas::new(self.title);
        canvas.text(10.0, 54.0, Anchor::Start, self.values_are, false);
        let width = (WIDTH - Self::LEGEND) / self.panels.len() as f64;
        for (number, panel) in self.panels.iter().enumerate() {
            let left = width * number as f64 + Self::AXIS;
            self.axes(&mut canvas, &scale, left, width - Self::AXIS - 10.0, panel.title);
            for (place, series) in panel.series.iter().enumerate() {
                self.series(&mut canvas, &scale, left, width - Self::AXIS - 10.0, place, series);
            }
        }
        self.legend(&mut canvas);
        canvas.finish(Self::TOP + Self::HEIGHT + 54.0, self.caption)
    }

    fn y(scale: &Scale, value: f64) -> f64 {
        Self::TOP + Self::HEIGHT * (1.0 - value / scale.end)
    }

    fn x(&self, left: f64, width: f64, place: usize) -> f64 {
        left + width * (place as f64 + 0.5) / self.places.len() as f64
    }

    fn axes(&self, canvas: &mut Canvas, scale: &Scale, left: f64, width: f64, title: &str) {
        canvas.text(left + width / 2.0, Self::TOP - 16.0, Anchor::Middle, title, true);
        for value in scale.ticks() {
            let y = Self::y(scale, value);
            canvas.line((left, y), (left + width, y), FAINT, 1.0);
            canvas.text(left - 6.0, y + 4.0, Anchor::End, &scale.label(value), false);
        }
        for (place, name) in self.places.iter().enumerate() {
            let x = self.x(left, width, place);
            canvas.text(x, Self::TOP + Self::HEIGHT + 18.0, Anchor::Middle, name, false);
        }
        let below = Self::TOP + Self::HEIGHT + 38.0;
        canvas.text(left + width / 2.0, below, Anchor::Middle, self.places_are, false);
    }

    fn series(
        &self,
        canvas: &mut Canvas,
        scale: &Scale,
        left: f64,
        width: f64,
        place: usize,
        series: &Series,
    ) {
        let thickness = if place == 0 { 3.5 } else { 2.0 };
        let point = |(place, &value): (usize, &f64)| (self.x(left, width, place), Self::y(scale, value));
        let points: Vec<(f64, f64)> = series.values.iter().enumerate().map(point).collect();
        canvas.path(&points, colour(place), thickness);
    }

    fn legend(&self, canvas: &mut Canvas) {
        let left = WIDTH - Self::LEGEND + 14.0;
        let names = self.panels.first().map_or(&[][..], |panel| &panel.series);
        for (place, series) in names.iter().enumerate() {
            let y = Self::TOP + 12.0 + 26.0 * place as f64;
            canvas.path(&[(left, y), (left + 22.0, y)], colour(place), if place == 0 { 3.5 } else { 2.0 });
            canvas.text(left + 32.0, y + 4.0, Anchor::Start, &series.name, place == 0);
        }
    }
}

fn colour(place: usize) -> &'static str {
    COLOURS[place % COLOURS.len()]
}

/// An axis from 0 in round steps.
struct Scale {
    end: f64,
    step: f64,
}

impl Scale {
    fn to(most: f64) -> Self {
        let most = most.max(1e-9);
        let magnitude = 10_f64.powf((most / 4.0).log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * magnitude);
        let step = steps.into_iter().find(|step| step * 5.0 >= most).unwrap_or(steps[4]);
        Self { end: (most / step).ceil() * step, step }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        (0..=(self.end / self.step).round() as u32).map(|number| f64::from(number) * self.step)
    }

    fn label(&self, value: f64) -> String {
        if self.end >= 10_000.0 {
            format!("{}k", value / 1000.0)
        } else if self.step >= 1.0 {
            format!("{value:.0}")
        } else {
            format!("{value:.2}")
        }
    }
}

enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing that grows.
struct Canvas {
    body: String,
}

impl Canvas {
    fn new(title: &str) -> Self {
        let mut canvas = Self { body: String::new() };
        let title = escaped(title);
        let _ = writeln!(
            canvas.body,
            r#"<text x="10" y="28" font-size="19" font-weight="600" fill="{INK}">{title}</text>"#
        );
        canvas
    }

    fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: &str, strong: bool) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if strong { r#" font-weight="600""# } else { "" };
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{INK}"{weight}>{text}</text>"#
        );
    }

    fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2" fill="{colour}"/>"#
        );
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, thickness: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="{thickness}"/>"#
        );
    }

    /// A line with a dot at each point.
    fn path(&mut self, points: &[(f64, f64)], colour: &str, thickness: f64) {
        let joined: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let joined = joined.join(" ");
        let _ = writeln!(
            self.body,
            r#"<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{thickness}"/>"#
        );
        for (x, y) in points {
            let _ =
                writeln!(self.body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="{thickness}" fill="{colour}"/>"#);
        }
    }

    /// The whole drawing, with a caption below.
    fn finish(mut self, height: f64, caption: &str) -> String {
        const LINE: f64 = 15.0;
        let lines = wrapped(caption, CAPTION_LETTERS);
        for (number, line) in lines.iter().enumerate() {
            let (y, line) = (height + 14.0 + LINE * number as f64, escaped(line));
            let _ = writeln!(
                self.body,
                r##"<text x="10" y="{y:.1}" font-size="11" fill="#59636e">{line}</text>"##
            );
        }
        let height = height + 14.0 + LINE * lines.len() as f64;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.body
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Lines of at most so many letters, broken between words.
fn wrapped(text: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < letters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_step_above_the_most() {
        for (most, end, step) in
            [(37.0, 40.0, 10.0), (101.0, 125.0, 25.0), (0.7, 0.8, 0.2), (50_000.0, 50_000.0, 10_000.0)]
        {
            let scale = Scale::to(most);
            assert!(
                (scale.end - end).abs() < 1e-9 && (scale.step - step).abs() < 1e-9,
                "{most}: {} by {}",
                scale.end,
                scale.step
            );
        }
    }

    #[test]
    fn a_caption_is_broken_between_words() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
    }
}
